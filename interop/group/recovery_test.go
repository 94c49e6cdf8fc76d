// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// attemptSource is a PyTorch rank that goes on after a failure: each attempt has a prefix of its own in the same store.
const attemptSource = `
import sys, datetime, time, torch, torch.distributed as dist
rank, size, port, first, last = map(int, sys.argv[1:6])
limit = datetime.timedelta(seconds=60)
old = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
store = dist.TCPStore("127.0.0.1", port, size, False, timeout=limit, wait_for_workers=False, **old)
for attempt in range(first, last + 1):
    dist.init_process_group("gloo", store=dist.PrefixStore(f"attempt_{attempt}", store), rank=rank, world_size=size, timeout=limit)
    x = torch.ones(3)
    dist.all_reduce(x)
    print("sum", attempt, int(x[0]), flush=True)
    if attempt == last:
        break
    try:
        while True:
            dist.all_reduce(torch.ones(3))
    except RuntimeError as e:
        print("failed", attempt, flush=True)
    time.sleep(1)  # PyTorch's destructor holds the interpreter's lock while it joins a thread that may want it
    dist.destroy_process_group()
`

// TestAttemptsWithPyTorch: a world of Go and PyTorch ranks loses one PyTorch rank after the other, each is replaced, and all go
// on over the same store under the next prefix.
func TestAttemptsWithPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		const size, last = 3, 2
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		server, err := tcpstore.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
		client, err := tcpstore.Dial(ctx, server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		start := func(rank, first int) *torchtest.Proc {
			return tr.Start(t, torchtest.Script{Name: fmt.Sprintf("rank%d.%d.py", rank, first), Source: attemptSource, Args: []string{
				strconv.Itoa(rank), strconv.Itoa(size), strconv.Itoa(server.Port()), strconv.Itoa(first), strconv.Itoa(last),
			}})
		}
		one, two := start(1, 0), start(2, 0)
		for attempt := 0; ; attempt++ {
			g, err := group.New(ctx, client, 0, size, group.WithBareStore(), group.WithStorePrefix("attempt_"+strconv.Itoa(attempt)))
			if err != nil {
				t.Fatal(err)
			}
			x := []float32{1, 1, 1}
			if err = group.AllReduceSlice(ctx, g, x, group.Sum); err != nil || x[0] != size {
				t.Fatalf("attempt %d: %v, %v", attempt, x, err)
			}
			one.Expect(t, fmt.Sprintf("sum %d %d", attempt, size))
			two.Expect(t, fmt.Sprintf("sum %d %d", attempt, size))
			if attempt == last {
				_ = g.Close()
				return
			}
			two.Kill()
			for err == nil {
				err = group.AllReduceSlice(ctx, g, x, group.Sum)
			}
			if !errors.Is(err, cohort.PeerLost) {
				t.Errorf("attempt %d: %v", attempt, err)
			}
			_ = g.Close()
			one.Expect(t, fmt.Sprintf("failed %d", attempt))
			two = start(2, attempt+1)
		}
	})
}

// restSource is a PyTorch rank that goes on with those that are left.
const restSource = `
import sys, datetime, torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
print("ready", flush=True)
try:
    while True:
        dist.all_reduce(torch.ones(3))
except RuntimeError as e:
    pass
rest = dist.new_group([0, 1], use_local_synchronization=True)
x = torch.ones(3)
dist.all_reduce(x, group=rest)
print("sum", int(x[0]), flush=True)
`

// TestGoingOnWithPyTorch: a Go rank and a PyTorch rank make a group of the ranks that are left, which outlives the old one.
// PyTorch has this since 2.1.
func TestGoingOnWithPyTorch(t *testing.T) {
	tr := torchtest.V26
	tr.Need(t)
	w := world{size: 3, goRanks: []int{0}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	port := testkit.FreePort(t)
	procs := w.startTorch(t, tr, port, restSource)
	g := w.joinGo(ctx, t, port)[0]
	x := []float32{1, 1, 1}
	if err := group.AllReduceSlice(ctx, g, x, group.Sum); err != nil {
		t.Fatal(err)
	}
	procs[1].Expect(t, "ready")
	procs[2].Kill()
	var err error
	for err == nil {
		err = group.AllReduceSlice(ctx, g, x, group.Sum)
	}
	if !errors.Is(err, cohort.PeerLost) {
		t.Errorf("%v", err)
	}
	rest, err := g.NewGroup(ctx, []cohort.Rank{0, 1}, group.WithLocalSync())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rest.Close() }()
	_ = g.Close()
	x = []float32{1, 1, 1}
	if err := group.AllReduceSlice(ctx, rest, x, group.Sum); err != nil || x[0] != 2 {
		t.Errorf("%v, %v", x, err)
	}
	procs[1].Expect(t, "sum 2")
}
