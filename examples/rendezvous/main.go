// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Command rendezvous is one rank of a job: it meets the others by an init URL and exchanges greetings with them. Start it
// once for each rank, on one machine or several; any of the ranks may be a PyTorch process instead:
//
//	go run ./examples/rendezvous 'tcp://127.0.0.1:29500?rank=0&world_size=2' &
//	go run ./examples/rendezvous 'tcp://127.0.0.1:29500?rank=1&world_size=2'
//
// The same with a rank in Python:
//
//	go run ./examples/rendezvous 'tcp://127.0.0.1:29500?rank=0&world_size=2' &
//	python3 -c 'import torch.distributed as d
//	store, rank, size = next(d.rendezvous("tcp://127.0.0.1:29500?rank=1&world_size=2"))
//	store.set(f"greeting/{rank}", "bonjour"); print(store.get("greeting/0"))'
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cohort-dist/cohort/examples/internal/launch"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/world"
)

func main() { launch.Main(run) }

func run(ctx context.Context, url string, out io.Writer) error {
	// While rank 0 waits for the others it logs which ranks are missing.
	progress := func(e observe.Event) {
		if e.Kind == rendezvous.EventWait {
			_, _ = fmt.Fprintln(out, e.Detail)
		}
	}
	w, err := world.Join(ctx, url, world.WithHook(progress), world.WithTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()

	greeting := fmt.Sprintf("hello from rank %d, pid %d", w.Rank(), os.Getpid())
	if err := w.Store().Set(ctx, fmt.Sprintf("greeting/%d", w.Rank()), []byte(greeting)); err != nil {
		return err
	}
	for rank := range w.Size() {
		text, err := w.Store().Get(ctx, fmt.Sprintf("greeting/%d", rank)) // waits until that rank has set it
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "rank %d read: %s\n", w.Rank(), text); err != nil {
			return err
		}
	}
	return w.Shutdown(ctx) // rank 0 hosts the store and stays until the others have left
}
