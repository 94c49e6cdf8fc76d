// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
	"github.com/cohort-dist/cohort/store/cluster/internal/memberlog"
)

// disk writes what the machine wants, beside the loop. While one batch is being synced the next one gathers.
type disk struct {
	log    *storelog.Log
	writer *memberlog.Writer
	dir    string
	full   atomic.Bool

	mu     sync.Mutex
	queue  []membercore.Write
	wakeup chan struct{}

	preparing atomic.Bool
}

// fullPause is between two attempts to write on a full disk.
const fullPause = 50 * time.Millisecond

// put queues writes. Those that need no sync wait for one that does, or for the next tick.
func (d *disk) put(writes []membercore.Write) {
	if len(writes) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, writes...)
	for _, w := range writes {
		if w.Sync {
			d.notify()
			return
		}
	}
}

// flush writes what waits.
func (d *disk) flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) > 0 {
		d.notify()
	}
}

func (d *disk) notify() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

func (d *disk) take() []membercore.Write {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.queue
	d.queue = nil
	return all
}

// run writes until ctx ends.
func (d *disk) run(ctx context.Context, m *Member) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wakeup:
		}
		if batch := d.take(); len(batch) > 0 && !d.write(ctx, m, batch) {
			return
		}
		d.prepare(m)
	}
}

// write writes a batch, as often as it takes if the disk is full, and reports whether the member can go on.
func (d *disk) write(ctx context.Context, m *Member, batch []membercore.Write) bool {
	err := d.writer.Write(batch, d.install)
	for errors.Is(err, cohort.Exhausted) && ctx.Err() == nil {
		d.setFull(ctx, m, true, err)
		pause(ctx, fullPause)
		err = d.writer.Write(batch, d.install)
	}
	if err != nil {
		if ctx.Err() == nil {
			m.fail(fmt.Errorf("the log cannot be written: %w", err))
		}
		return false
	}
	d.setFull(ctx, m, false, nil)
	for _, w := range batch {
		if w.Install != nil {
			d.forget(w.Install.GetMetadata().GetIndex())
		}
	}
	last := batch[len(batch)-1].Number
	return m.post(ctx, func(machine *membercore.Machine) { machine.Written(last) }) == nil
}

func (d *disk) setFull(ctx context.Context, m *Member, full bool, why error) {
	if d.full.Swap(full) == full {
		return
	}
	if full {
		m.config.Log.Error("the disk is full", slog.String("dir", d.dir), slog.String("reason", why.Error()))
	} else {
		m.config.Log.Info("the disk has room again", slog.String("dir", d.dir))
	}
	_ = m.post(ctx, func(machine *membercore.Machine) { machine.Full(full) })
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// prepare makes the log's next file beside.
func (d *disk) prepare(m *Member) {
	if d.log.WantsReserve() && !d.preparing.Swap(true) {
		m.tasks.Go(func() {
			defer d.preparing.Store(false)
			_ = d.log.Prepare() // Write makes it if it has to
		})
	}
}

// receivedName is the file of a snapshot that a leader has sent. The log removes it when the folder is opened again.
func (d *disk) receivedName(index uint64) string {
	return filepath.Join(d.dir, fmt.Sprintf("received-%d.tmp", index))
}

// receive stores the state of a snapshot until the machine wants it.
func (d *disk) receive(index uint64, r io.Reader) error {
	name := d.receivedName(index)
	f, err := os.OpenFile(name+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600) //nolint:gosec // in the folder of the log
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err == nil {
		return os.Rename(name+".tmp", name)
	}
	_ = os.Remove(name + ".tmp")
	return err
}

// install copies a received state into the log's snapshot.
func (d *disk) install(snap *raftpb.Snapshot, w io.Writer) error {
	name := d.receivedName(snap.GetMetadata().GetIndex())
	f, err := os.Open(name) //nolint:gosec // in the folder of the log
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, f.Close())
}

// forget removes a snapshot that was received and is not needed any more.
func (d *disk) forget(index uint64) { _ = os.Remove(d.receivedName(index)) }
