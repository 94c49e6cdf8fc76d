// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

const (
	victimName = "victim"
	victimAddr = "COHORT_TEST_VICTIM" // the store of a victim's world
	victimRole = "COHORT_TEST_VICTIM_OPENS"
)

// onePass is a forward and backward pass along a path, and back.
func onePass(ctx context.Context, e *distautograd.Engine, a *rpc.Agent, path []string, opts ...distautograd.PassOption) (err error) {
	ctx, c, err := e.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	x := param(3)
	y, err := rpc.Call[*autograd.Variable](ctx, a, path[0], "t.via", path[1:], x)
	if err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	if err := c.Backward(ctx, []*autograd.Variable{y.Sum()}, opts...); err != nil {
		return err
	}
	want := 6.0
	for range path[1:] {
		want *= 3
	}
	if got, err := tensor.Copy[float64](c.Gradient(x)); err != nil || got[0] != want {
		return fmt.Errorf("gradient %v, want %v: %w", got, want, err)
	}
	return nil
}

// TestMain runs the tests, or in a process that TestKilled starts, the worker that it kills.
func TestMain(m *testing.M) {
	addr := os.Getenv(victimAddr)
	if addr == "" {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, "the victim has ended:", beVictim(addr, os.Getenv(victimRole) != ""))
	os.Exit(1)
}

// beVictim is a worker that works until it is killed, or two minutes.
func beVictim(addr string, opens bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	st, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	e := distautograd.New()
	a, err := rpc.Join(ctx, st, victimName, rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(basics()), e.Join())
	if err != nil {
		return err
	}
	fmt.Println("joined")
	for opens {
		if err := onePass(ctx, e, a, []string{"w1", "w2"}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// killedWorld is three workers here and a victim in a process of its own. kill ends it by SIGKILL.
func killedWorld(t *testing.T, opens string) (ws []*worker, kill func()) {
	t.Helper()
	ctx := testContext(t)
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	for i := range 3 {
		st, failed := tcpstore.Dial(ctx, server.Addr().String())
		if failed != nil {
			t.Fatal(failed)
		}
		t.Cleanup(func() { _ = st.Close() })
		e := distautograd.New(distautograd.WithLease(time.Second))
		a, failed := rpc.Join(ctx, st, fmt.Sprintf("w%d", i), rpc.WithAddr("127.0.0.1:0"), rpc.WithHandlers(basics()), e.Join())
		if failed != nil {
			t.Fatal(failed)
		}
		t.Cleanup(func() { _ = a.Close() })
		ws = append(ws, &worker{engine: e, agent: a})
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Stderr = os.Stderr // has the reason why it ended, if it was not killed
	cmd.Env = append(os.Environ(), victimAddr+"="+server.Addr().String(), victimRole+"="+opens)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	for lines := bufio.NewScanner(out); ; {
		if !lines.Scan() {
			t.Fatal("the victim has not joined")
		}
		if strings.Contains(lines.Text(), "joined") {
			return ws, kill
		}
	}
}

// TestKilled kills a worker by SIGKILL at random moments of passes, which go through it or are its own: workers that
// wait for it are notified, by its name, and no worker that is left keeps anything of its contexts.
func TestKilled(t *testing.T) {
	const rounds = 4
	r := rand.New(rand.NewPCG(9, 9))
	for i := range rounds {
		delay := time.Duration(r.IntN(20_000)) * time.Microsecond
		modes(t, func(t *testing.T, opts ...distautograd.PassOption) {
			t.Helper()
			ws, kill := killedWorld(t, "")
			ctx := testContext(t)
			time.AfterFunc(delay, kill)
			begun := time.Now()
			var err error
			for err == nil {
				err = onePass(ctx, ws[0].engine, ws[0].agent, []string{"w1", victimName, "w2"}, opts...)
			}
			if took := time.Since(begun); took > delay+liveness {
				t.Errorf("round %d: it took %v", i, took)
			}
			var e *cohort.Error
			if inPass := !strings.HasPrefix(err.Error(), "forward"); inPass &&
				(!errors.Is(err, cohort.PeerLost) || !errors.As(err, &e) || e.Peer != victimName) ||
				!strings.Contains(err.Error(), victimName) {
				t.Errorf("round %d, killed after %v: %v", i, delay, err)
			}
			for _, w := range ws {
				w.noLeak(t)
			}
		})
		t.Run("opener", func(t *testing.T) {
			ws, kill := killedWorld(t, "yes")
			time.Sleep(delay)
			kill()
			for _, w := range ws {
				w.noLeak(t)
			}
			if err := onePass(testContext(t), ws[0].engine, ws[0].agent, []string{"w1", "w2"}); err != nil {
				t.Errorf("round %d: a pass of those who are left: %v", i, err)
			}
		})
	}
}
