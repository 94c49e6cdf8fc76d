// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// mortalEnv tells a process of this test binary that it is a worker of a dynamic world: its name, and where the store is.
const mortalEnv = "COHORT_RPC_MORTAL"

// mortal is a worker that waits for its death.
func mortal(spec string) int {
	name, addr, _ := strings.Cut(spec, " ")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	st, err := tcpstore.Dial(ctx, addr)
	if err == nil {
		_, err = Join(ctx, st, name, WithAddr("127.0.0.1:0"), WithLogger(testLogger()),
			WithHandlers(NewRegistry().MustHandle("t.process", os.Getpid)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	<-ctx.Done()
	return 0
}

// startMortal starts a worker in a process that kill ends without a word.
func startMortal(t *testing.T, name, addr string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), mortalEnv+"="+name+" "+addr), os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// TestKilledProcessIsReplaced kills the process of a worker of a dynamic world, which has called and been called. Its replacement takes its
// name before any other worker joins, and the worker that stays reaches it by that name. While the process lives, its name is refused.
func TestKilledProcessIsReplaced(t *testing.T) {
	t.Parallel()
	const replacedWithin = 10 * time.Second // a machine may be busy; the lease of a PyTorch worker, after which others give up, is longer
	ctx := testContext(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	addr := server.Addr().String()
	join := func(name string) (*Agent, error) {
		st, failed := tcpstore.Dial(ctx, addr)
		if failed != nil {
			return nil, failed
		}
		t.Cleanup(func() { _ = st.Close() })
		return Join(ctx, st, name, WithAddr("127.0.0.1:0"), WithLogger(testLogger()),
			WithHandlers(NewRegistry().MustHandle("t.process", os.Getpid)))
	}
	stays, err := join("stays")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stays.Close() }()
	kill := startMortal(t, "w", addr)
	for {
		pid, failed := Call[int](ctx, stays, "w", "t.process")
		if failed == nil && pid != os.Getpid() {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // until it has joined
	}
	if double, failed := join("w"); cohort.CodeOf(failed) != cohort.AlreadyExists {
		t.Fatalf("the name of a process that runs: %v, %v", double, failed)
	}
	kill()
	begun := time.Now()
	replacement, err := join("w")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = replacement.Close() }()
	if took := time.Since(begun); took > replacedWithin {
		t.Errorf("the replacement took %v to join", took)
	}
	for from, to := range map[*Agent]string{stays: "w", replacement: "stays"} {
		if pid, err := Call[int](ctx, from, to, "t.process"); pid != os.Getpid() || err != nil {
			t.Errorf("a call of %s: process %d, %v", to, pid, err)
		}
	}
}
