// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// memoryEnv sets how many calls and references TestMemory makes: "full" is a million of each.
const memoryEnv = "COHORT_MEMORY"

// memoryChildEnv makes the test binary the callee of TestMemory.
const memoryChildEnv = "COHORT_MEMORY_CHILD"

// TestMemory makes calls and references, drops them, and compares the resident memory of caller and callee with that after
// the first ten thousand: at most ten megabytes more. The two are processes of their own, so that each is seen alone.
func TestMemory(t *testing.T) {
	if addr := os.Getenv(memoryChildEnv); addr != "" {
		memoryCallee(t, addr)
		return
	}
	n, allowed := 30_000, 10<<20
	if raceEnabled { // whose own memory grows
		n, allowed = 12_000, 64<<20
	}
	switch v := os.Getenv(memoryEnv); v {
	case "":
	case "full":
		n = 1_000_000
	default:
		var err error
		n, err = strconv.Atoi(v)
		must(t, err)
	}
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	defer func() { _ = server.Close() }()
	child := exec.Command(os.Args[0], "-test.run=^TestMemory$", "-test.timeout=30m")
	child.Env = append(os.Environ(), memoryChildEnv+"="+server.Addr().String())
	var said bytes.Buffer
	child.Stdout, child.Stderr = &said, &said
	must(t, child.Start())
	st, err := tcpstore.Dial(t.Context(), server.Addr().String())
	must(t, err)
	defer func() { _ = st.Close() }()
	agent, err := memoryWorker(t, st, 0)
	must(t, err)
	x := ones(2)
	round := func(from, to int) {
		for i := from; i < to; i++ {
			if _, err := rpc.Call[*tensor.Tensor](t.Context(), agent, "m1", "m.echo", x); err != nil {
				t.Fatal(err)
			}
			ref, err := rpc.Remote[*tensor.Tensor](t.Context(), agent, "m1", "m.echo", x)
			if err != nil {
				t.Fatal(err)
			}
			if i%16 == 0 {
				if _, err := ref.Fetch(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := ref.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	measure := func() (own, theirs int) {
		// What is still on its way to be released, and resident memory that is garbage, would hide a leak or feign one.
		testkit.Until(t, "the callee owns nothing", func() bool {
			left, err := rpc.Call[int](t.Context(), agent, "m1", "m.left")
			must(t, err)
			return left == 0
		})
		own = resident()
		theirs, err := rpc.Call[int](t.Context(), agent, "m1", "m.resident")
		must(t, err)
		return own, theirs
	}
	round(0, 10_000)
	own0, theirs0 := measure()
	round(10_000, n)
	own1, theirs1 := measure()
	t.Logf("calls and references: %d each; caller %.1f MB -> %.1f MB, callee %.1f MB -> %.1f MB",
		n, mb(own0), mb(own1), mb(theirs0), mb(theirs1))
	if own1-own0 > allowed || theirs1-theirs0 > allowed {
		t.Errorf("resident memory grew by %.1f MB at the caller and %.1f MB at the callee, allowed are %.0f", mb(own1-own0),
			mb(theirs1-theirs0), mb(allowed))
	}
	must(t, agent.Shutdown(t.Context()))
	if err := child.Wait(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
}

func mb(n int) float64 { return float64(n) / (1 << 20) }

func memoryWorker(t *testing.T, st store.Store, rank int) (*rpc.Agent, error) {
	t.Helper()
	reg := rpc.NewRegistry().
		MustHandle("m.echo", func(x any) any { return x }).
		MustHandle("m.left", func(ctx context.Context) int { return len(rpc.AgentFrom(ctx).References().Objects) }).
		MustHandle("m.resident", resident)
	return rpc.Join(t.Context(), st, fmt.Sprintf("m%d", rank), rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(2),
		rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(reg))
}

func memoryCallee(t *testing.T, addr string) {
	t.Helper()
	st, err := tcpstore.Dial(t.Context(), addr)
	must(t, err)
	defer func() { _ = st.Close() }()
	agent, err := memoryWorker(t, st, 1)
	must(t, err)
	must(t, agent.Shutdown(t.Context())) // serves until the other one comes to the same point
}

// resident returns the resident memory of this process after a garbage collection.
func resident() int {
	runtime.GC()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				panic(err)
			}
			return kb << 10
		}
	}
	panic("no VmRSS")
}
