// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

// recoveryEnv makes this binary a rank of a world that loses ranks.
const recoveryEnv = "COHORT_TEST_RECOVERY"

// recoveringRank works with the world's group until it fails, reports which rank was lost, and continues with the next group. It
// is what docs/recovery.md recommends.
func recoveringRank(mode string) int {
	transport, shrink := strings.CutSuffix(mode, "-shrink")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	w, err := world.Join(ctx, "env://", world.WithGroup(group.WithTransport(group.Transport(transport))))
	if err != nil {
		fmt.Println("failed", err)
		return 1
	}
	defer func() { _ = w.Close() }()
	var g *group.Group
	for {
		if g == nil || !shrink {
			g, err = w.Group(ctx)
		}
		if err != nil {
			fmt.Println("failed", err)
			return 1
		}
		fmt.Println("made", g.Transport())
		for i := 0; err == nil; i++ {
			if i%2 == 1 { // messages around the ring
				next, before := (g.Rank()+1)%cohort.Rank(g.Size()), (g.Rank()+cohort.Rank(g.Size())-1)%cohort.Rank(g.Size())
				in, out := tensor.Must(tensor.From([]int64{0}, 1)), tensor.Must(tensor.From([]int64{1}, 1))
				err = group.WaitAll(ctx, g.Send(ctx, out, next, 0), g.Recv(ctx, in, before, 0))
				continue
			}
			x := []float64{float64(g.Rank())}
			if err = group.AllReduceSlice(ctx, g, x, group.Sum); err == nil && x[0] != float64(g.Size()*(g.Size()-1))/2 {
				fmt.Println("failed: sum", x)
				return 1
			}
		}
		e, ok := errors.AsType[*cohort.Error](err)
		if !ok || e.Code != cohort.PeerLost {
			fmt.Println("failed", err)
			return 1
		}
		fmt.Println("lost", g.GlobalRank(e.Rank))
		if shrink {
			// The ranks that are left continue without it. The order: first the new group, then the old one ends.
			var left []cohort.Rank
			for r := range cohort.Rank(g.Size()) {
				if r != e.Rank {
					left = append(left, r)
				}
			}
			old := g
			g, err = old.NewGroup(ctx, left, group.WithLocalSync(), group.WithTransport(group.Transport(transport)))
			_ = old.Close()
			if err != nil {
				fmt.Println("failed", err)
				return 1
			}
			continue
		}
		_ = g.Close() // a message that failed leaves the group as it was; the others notice that this rank is through with it
	}
}

// rankProcess is a rank in a separate process.
type rankProcess struct {
	cmd   *exec.Cmd
	lines chan string
}

func startRank(t *testing.T, server *tcpstore.Server, mode string, rank, size int) *rankProcess {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), recoveryEnv+"="+mode, "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(size),
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(server.Port()), "TORCHELASTIC_USE_AGENT_STORE=True",
		"TORCHELASTIC_RESTART_COUNT=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &rankProcess{cmd: cmd, lines: make(chan string, 100)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	return p
}

// line is the next line that the rank prints.
func (p *rankProcess) line(t *testing.T, limit time.Duration) string {
	t.Helper()
	select {
	case text := <-p.lines:
		return text
	case <-time.After(limit):
		return "nothing within " + limit.String()
	}
}

func (p *rankProcess) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

// TestGenerations: in a world of four processes one is killed, all others report which, it is replaced, and all continue with a new
// group; twenty times, over the same store.
func TestGenerations(t *testing.T) {
	const size, rounds = 4, 20
	for _, transport := range []group.Transport{group.SharedMemory, group.TCP, group.Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			server, err := tcpstore.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Close() }()
			ranks := make([]*rankProcess, size)
			for r := range ranks {
				ranks[r] = startRank(t, server, string(transport), r, size)
			}
			defer func() {
				for _, p := range ranks {
					p.kill(t)
				}
			}()
			for round := range rounds {
				for r, p := range ranks {
					if got, want := p.line(t, time.Minute), "made "+string(transport); got != want {
						t.Fatalf("round %d: rank %d printed %q, want %q", round, r, got, want)
					}
				}
				dead := round * 7 % size
				ranks[dead].kill(t)
				killed := time.Now()
				for r, p := range ranks {
					if r == dead {
						continue
					}
					if got, want := p.line(t, 10*time.Second), "lost "+strconv.Itoa(dead); got != want {
						t.Fatalf("round %d: rank %d printed %q, want %q", round, r, got, want)
					}
				}
				if d := time.Since(killed); d > 5*time.Second {
					t.Errorf("round %d: the death of rank %d was noticed after %v", round, dead, d)
				}
				ranks[dead] = startRank(t, server, string(transport), dead, size)
			}
			if n := server.Stats().Keys; n > 60 {
				t.Errorf("%d keys are left in the store", n)
			}
		})
	}
}

// TestShrinking: in a world of five processes one after the other is killed, and those that are left continue without it.
func TestShrinking(t *testing.T) {
	const size = 5
	for _, transport := range []group.Transport{group.SharedMemory, group.TCP, group.Gloo} {
		t.Run(string(transport), func(t *testing.T) {
			server, err := tcpstore.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Close() }()
			ranks := map[int]*rankProcess{}
			for r := range size {
				ranks[r] = startRank(t, server, string(transport)+"-shrink", r, size)
			}
			defer func() {
				for _, p := range ranks {
					p.kill(t)
				}
			}()
			for _, dead := range []int{2, 0, 4} {
				for r, p := range ranks {
					if got, want := p.line(t, time.Minute), "made "+string(transport); got != want {
						t.Fatalf("before the death of %d: rank %d printed %q, want %q", dead, r, got, want)
					}
				}
				ranks[dead].kill(t)
				delete(ranks, dead)
				for r, p := range ranks {
					if got, want := p.line(t, 10*time.Second), "lost "+strconv.Itoa(dead); got != want {
						t.Fatalf("rank %d printed %q, want %q", r, got, want)
					}
				}
			}
			for r, p := range ranks {
				if got, want := p.line(t, time.Minute), "made "+string(transport); got != want {
					t.Fatalf("at the end rank %d printed %q, want %q", r, got, want)
				}
			}
		})
	}
}
