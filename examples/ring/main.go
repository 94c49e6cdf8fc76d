// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command ring is one worker of a ring of Go workers that pass references around. Start it once for each rank:
//
//	go run ./examples/ring 'tcp://127.0.0.1:29500?rank=0&world_size=3' &
//	go run ./examples/ring 'tcp://127.0.0.1:29500?rank=1&world_size=3' &
//	go run ./examples/ring 'tcp://127.0.0.1:29500?rank=2&world_size=3'
//
// Every worker owns a diary. Rank 0 sends a reference to its diary around the ring; each worker writes a line into it,
// wherever it lives, and passes the reference on. No worker copies the diary, and it is freed when the last reference is
// closed.
package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/examples/internal/launch"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/world"
)

// Diary is an object that others write into through references.
type Diary struct {
	mu    sync.Mutex
	lines []string
}

// Write adds a line and returns the number of lines.
func (d *Diary) Write(line string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
	return len(d.lines)
}

// Lines returns what was written.
func (d *Diary) Lines() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.lines...)
}

func main() { launch.Main(run) }

// name is a worker's name.
func name(rank int) string { return fmt.Sprintf("worker%d", rank) }

// pass is the handler: write into the diary, then give the reference to the next worker until it is home again.
func pass(ctx context.Context, diary *rpc.Ref[*Diary], size int) error {
	defer func() { _ = diary.Close() }()
	me := rpc.AgentFrom(ctx)
	if _, err := rpc.CallMethod[int](ctx, diary, "write", me.Name()+" was here"); err != nil {
		return err
	}
	next := (int(me.ID()) + 1) % size
	if name(next) == diary.Owner().Name {
		return nil
	}
	_, err := rpc.Call[any](ctx, me, name(next), "ring.pass", diary, size)
	return err
}

func run(ctx context.Context, url string, out io.Writer) error {
	w, err := world.Join(ctx, url, world.WithTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	reg := rpc.NewRegistry().
		MustClass("ring.Diary", (*Diary)(nil)).
		MustHandle("ring.pass", pass)
	rank, size := int(w.Rank()), w.Size()
	agent, err := w.RPC(ctx, name(rank), rpc.WithHandlers(reg))
	if err != nil {
		return err
	}
	if rank == 0 {
		diary, err := rpc.NewRef(agent, &Diary{})
		if err != nil {
			return err
		}
		if _, err = rpc.Call[any](ctx, agent, name((rank+1)%size), "ring.pass", diary, size); err != nil {
			return err
		}
		d, err := diary.LocalValue(ctx)
		if err != nil {
			return err
		}
		for _, line := range d.Lines() {
			_, _ = fmt.Fprintln(out, line)
		}
		_ = diary.Close()
	}
	return w.Shutdown(ctx) // the agent first: it waits until no reference is left
}
