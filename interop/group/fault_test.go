// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// loopSource is a PyTorch rank that reduces until something breaks, and says what.
const loopSource = `
import sys, datetime, torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
dist.set_debug_level_from_env()
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=30))
x = torch.ones(5)
dist.all_reduce(x)
print("ready", flush=True)
try:
    while True:
        dist.all_reduce(x)
        x.fill_(1)
except RuntimeError as e:
    print("error", str(e).replace("\n", " ")[:200], flush=True)
import os
os._exit(0)
`

func TestKilledTorchRankIsNamed(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		w := world{size: 3, goRanks: []int{0}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		port := testkit.FreePort(t)
		procs := w.startTorch(t, tr, port, loopSource)
		g := w.joinGo(ctx, t, port)[0]
		x := []float32{1, 1, 1, 1, 1}
		if err := group.AllReduceSlice(ctx, g, x, group.Sum); err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			p.Expect(t, "ready")
		}
		killed := make(chan time.Time, 1)
		go func() {
			time.Sleep(50 * time.Millisecond)
			killed <- time.Now()
			procs[2].Kill()
		}()
		var err error
		for err == nil {
			err = group.AllReduceSlice(ctx, g, x, group.Sum)
		}
		if took := time.Since(<-killed); took > 15*time.Second { // half of the timeout of an operation; the machine may be very busy
			t.Errorf("it took %v to notice", took)
		}
		var e *cohort.Error
		if !errors.As(err, &e) || e.Code != cohort.PeerLost || e.Rank != 2 && e.Rank != 1 { // rank 1 may end first: it lost rank 2 too
			t.Errorf("%v", err)
		}
		if err := g.Barrier(ctx).Wait(ctx); !errors.Is(err, cohort.PeerLost) || !strings.Contains(err.Error(), "failed before") {
			t.Errorf("later: %v", err)
		}
	})
}

const childEnv = "COHORT_INTEROP_GROUP_CHILD"

// child is the Go rank of TestKilledGoRank, or what startGo starts, in a process of its own.
func child(spec string) int {
	var rank, size, port int
	var peers string
	if _, err := fmt.Sscanf(spec, "store %d", &port); err == nil {
		return hostStore(port)
	}
	if _, err := fmt.Sscanf(spec, "member %d %d", &rank, &port); err == nil {
		return serveMember(rank, port)
	}
	if _, err := fmt.Sscanf(spec, "puppet %d %d %d %s", &rank, &size, &port, &peers); err == nil {
		return servePuppet(rank, size, port, peers)
	}
	if _, err := fmt.Sscanf(spec, "%d %d %d", &rank, &size, &port); err != nil {
		return 2
	}
	ctx := context.Background()
	client, err := tcpstore.Dial(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 3
	}
	if _, err = client.JoinWorker(ctx); err != nil {
		return 4
	}
	g, err := group.New(ctx, client, cohort.Rank(rank), size)
	if err != nil {
		return 5
	}
	for {
		if err := group.AllReduceSlice(ctx, g, make([]float32, 5), group.Sum); err != nil {
			return 6
		}
	}
}

// startChild starts a Go rank that reduces until something breaks, in a process of its own.
func startChild(t *testing.T, rank, size, port int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d", childEnv, rank, size, port))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestKilledGoRank(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		port := testkit.FreePort(t)
		w := world{size: 3, goRanks: []int{1}}
		procs := w.startTorch(t, tr, port, loopSource)
		cmd := startChild(t, 1, 3, port)
		for _, p := range procs {
			p.Expect(t, "ready")
		}
		time.Sleep(50 * time.Millisecond)
		_ = cmd.Process.Kill()
		// Each PyTorch rank must get an ordinary exception. One that was between two operations when the connection
		// ended may find out only by its own timeout: gloo takes such an end for a normal one.
		told := 0
		for r, p := range procs {
			line := p.Line(t)
			switch {
			case strings.HasPrefix(line, "error") && (strings.Contains(line, "closed by peer") || strings.Contains(line, "reset by peer")):
				told++
			case strings.HasPrefix(line, "error") && strings.Contains(line, "Timed out waiting"):
			default:
				t.Errorf("rank %d: %q", r, line)
			}
			p.MustExit(t, 20*time.Second)
		}
		if told == 0 {
			t.Error("no PyTorch rank was told that the connection ended")
		}
	})
}

// TestDefaultInterface runs without GLOO_SOCKET_IFNAME: PyTorch takes the address of the host's name, the Go rank that of the
// route towards the store.
func TestDefaultInterface(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		plan := []step{{Op: "all_reduce", N: 13, DType: "float32"}, {Op: "barrier"}, {Op: "ring", N: 100_000, DType: "float32"}}
		want := world{size: 2}.run(t, tr, plan)
		for _, r := range []int{0, 1} {
			w := world{size: 2, goRanks: []int{r}, env: map[string]string{"GLOO_SOCKET_IFNAME": ""}}
			t.Run(w.String(), func(t *testing.T) {
				t.Setenv("GLOO_SOCKET_IFNAME", "")
				compare(t, plan, want, w.run(t, tr, plan))
			})
		}
	})
}

// TestSeveralDevices has two connections per pair, one per device, and operations take them in turn.
func TestSeveralDevices(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		var plan []step
		for i := range 7 {
			plan = append(plan, step{Op: "all_reduce", N: 10 + i, DType: "float32"}, step{Op: "async", N: 100, DType: "float32"})
		}
		plan = append(plan, step{Op: "ring", N: 10, DType: "float32"}, step{Op: "monitored_barrier"})
		want := world{size: 3}.run(t, tr, plan)
		w := world{
			size: 3, goRanks: []int{1}, env: map[string]string{"GLOO_SOCKET_IFNAME": "lo,lo"},
			options: []group.Option{group.WithDevices("lo", "lo")},
		}
		compare(t, plan, want, w.run(t, tr, plan))
	})
}
