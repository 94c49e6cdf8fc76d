// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/observe"
)

// Generation is a version of gloo's rendezvous; see package wire.
type Generation = gloowire.Generation

// The generations.
const (
	auto = gloowire.Auto
	A    = gloowire.A
	B    = gloowire.B
	C    = gloowire.C
	D    = gloowire.D
)

// KV is what a mesh needs of a store. store.Store has it.
type KV interface {
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key exists.
	Get(ctx context.Context, key string) ([]byte, error)
}

// checker is a KV that can look for a key without waiting. Generation Auto needs it.
type checker interface {
	Check(ctx context.Context, keys ...string) (bool, error)
}

// defaultTimeout bounds Connect, and later the connecting of a lazy pair, when Config.Timeout is zero.
const defaultTimeout = 5 * time.Minute

// Config describes how to join a group.
type Config struct {
	Rank, Size int

	// Store is where addresses are exchanged, under Prefix + "/" + device + "/" + rank.
	Store  KV
	Prefix string

	// Generation is the protocol of the peers. Auto reads it from what they publish, which needs a Checker.
	Generation Generation
	// Lazy connects a pair at its first use; needs generation D.
	Lazy bool

	// Devices has one entry per device, each an IP address or the name of an interface; see [Address]. All ranks need the
	// same number. Empty means one device, chosen by the route towards StoreAddr.
	Devices []string
	// StoreAddr is the store's "host:port".
	StoreAddr string

	// Timeout bounds Connect and the connecting of a lazy pair.
	Timeout time.Duration
	// Linger is how long Close continues reading after the last byte was sent, so that what peers still send does not turn
	// into a reset that destroys data. It ends early when the peers have closed.
	Linger time.Duration
	// OnLost, if set, is notified of every rank that is lost, whether or not an operation runs; see [transport.Loss].
	OnLost func(transport.Loss)

	Logger *slog.Logger
	Hook   observe.Hook
	// Group names the group in events.
	Group string
	// Judge has the last word on why the mesh fails; see [transport.Judge].
	Judge transport.Judge

	// Wrap, if set, is given every connection before its first use; tests inject faults with it.
	Wrap func(peer int, conn net.Conn) net.Conn

	plain bool // send no more than PyTorch does, for tests
}

func (c *Config) prepare() error {
	bad := func(format string, args ...any) error {
		return cohort.Newf("gloo: connect", cohort.InvalidArgument, format, args...)
	}
	switch {
	case c.Size < 1 || c.Size > gloowire.MaxRanks:
		return bad("world size %d", c.Size)
	case c.Rank < 0 || c.Rank >= c.Size:
		return bad("rank %d of %d", c.Rank, c.Size)
	case c.Store == nil:
		return bad("no store")
	case c.Generation > D:
		return bad("generation %d", c.Generation)
	case c.Lazy && c.Generation != D:
		return bad("lazy connections need generation D, not %s", c.Generation)
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Linger <= 0 {
		c.Linger = 100 * time.Millisecond
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	if limit := 192 - len(gloowire.GoMark); len(name) > limit { // what gloo takes
		name = name[:limit]
	}
	return name
}

// Mesh is a transport.Mesh over gloo's wire. With several devices it has one full mesh per device; an op runs on the device
// that its slot's tag selects, as in PyTorch.
type Mesh struct {
	rank, size int
	generation Generation
	devices    []*device
	judge      transport.Judge
	watch      *watch

	closeOnce sync.Once
	closed    chan struct{}
}

var (
	_ transport.Mesh = (*Mesh)(nil)
	_ Watcher        = (*Mesh)(nil)
)

// Rank returns this process's rank.
func (m *Mesh) Rank() int { return m.rank }

// Size returns the number of ranks.
func (m *Mesh) Size() int { return m.size }

// Generation returns the generation of rendezvous that was used.
func (m *Mesh) Generation() Generation { return m.generation }

// Devices returns the number of devices.
func (m *Mesh) Devices() int { return len(m.devices) }

func (m *Mesh) device(slot uint64) *device {
	if len(m.devices) == 1 {
		return m.devices[0]
	}
	return m.devices[gloowire.TagOf(slot)%uint64(len(m.devices))]
}

// Send posts a message.
func (m *Mesh) Send(op *transport.Op) { m.device(op.Slot).send(op) }

// Recv posts room for a message.
func (m *Mesh) Recv(op *transport.Op) { m.device(op.Slot).recv(op) }

// Wait returns when op is complete.
func (m *Mesh) Wait(ctx context.Context, op *transport.Op) error {
	if op.Completed() {
		return op.State.Err
	}
	return m.device(op.Slot).wait(ctx, op)
}

// Cancel withdraws an op that its peer has not matched yet; see match.Machine.Cancel.
func (m *Mesh) Cancel(op *transport.Op) bool { return m.device(op.Slot).cancel(op) }

// Fail ends every op with err and closes all connections, so that peers notice at once.
func (m *Mesh) Fail(err error) {
	err = m.judge.Reason(err) // before a peer sees a connection end
	for _, d := range m.devices {
		d.fail(err)
	}
}

// Err returns what the mesh failed with, or nil.
func (m *Mesh) Err() error {
	for _, d := range m.devices {
		if err := d.err(); err != nil {
			return err
		}
	}
	return nil
}

// Awaited returns the ranks that ops wait for. Any of them may itself wait for another, which gloo does not report.
func (m *Mesh) Awaited() (ranks []int) {
	for r := range m.size {
		for _, d := range m.devices {
			failpoint.At("gloo.awaited")
			d.mu.Lock()
			waits := d.machine.Pending(r)
			d.mu.Unlock()
			if waits {
				ranks = append(ranks, r)
				break
			}
		}
	}
	return ranks
}

// Close sends what is queued, ends all connections and joins all goroutines.
func (m *Mesh) Close() error {
	m.closeOnce.Do(func() {
		failpoint.At("gloo.mesh.close")
		m.watch.close()
		var wg sync.WaitGroup
		for _, d := range m.devices {
			wg.Go(d.close)
		}
		wg.Wait()
		failpoint.At("gloo.mesh.close.tasks")
		m.watch.tasks.Wait()
		m.watch.order.close()
		close(m.closed)
	})
	failpoint.At("gloo.mesh.closed")
	<-m.closed
	return nil
}

func errClosed() error { return cohort.New("gloo: mesh", cohort.Closed, "the mesh was closed") }
