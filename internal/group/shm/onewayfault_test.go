// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
)

// rootedStep draws an operation of the sequence that all ranks run: of the kinds with a root, of sizes around the limits up to which data
// flows one way, the root changing often, and now and then one that waits for all.
func rootedStep(plan *rand.Rand, ranks int) (kind collective.Kind, root, n int) {
	kinds := []collective.Kind{collective.Broadcast, collective.Reduce, collective.Gather, collective.Scatter}
	if plan.IntN(40) == 0 {
		kinds = []collective.Kind{collective.AllReduce}
	}
	slot := 64 << 10 // the default
	limits := []int{4, 8, 16, 400, slot / ranks / 4 * 4, 32 << 10 / max(1, ranks/2), slot}
	return kinds[plan.IntN(len(kinds))], plan.IntN(ranks), max(4, limits[plan.IntN(len(limits))]+4*(plan.IntN(3)-1))
}

func init() { //nolint:gochecknoinits // a role
	// rooted runs a sequence of operations with roots in parts, with pauses, and prints how it ended. One rank ends as
	// its arguments demand after one of them.
	roles["rooted"] = func(e *Engine, args []string) error {
		seed, _ := strconv.ParseUint(args[0], 10, 64)
		victim, _ := strconv.Atoi(args[1])
		last, _ := strconv.Atoi(args[2])
		steps, _ := strconv.ParseUint(args[4], 10, 32)
		plan, pause := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, uint64(2+e.Rank())))
		for tag := range uint32(steps) {
			if pause.IntN(20) == 0 {
				time.Sleep(time.Duration(pause.IntN(2000)) * time.Microsecond)
			}
			kind, root, n := rootedStep(plan, e.Size())
			err := checkRooted(e, kind, tag, root, n,
				func(q *collective.Request) error { return runInParts(context.Background(), e, q, pause) })
			if err != nil {
				if lost, ok := errors.AsType[*cohort.Error](err); ok {
					fmt.Println("ended", lost.Code, lost.Rank, tag, err)
					return nil
				}
				return err
			}
			if tag == 20 {
				fmt.Println("running")
			}
			if e.Rank() != victim || int(tag) != last {
				continue
			}
			if args[3] == "close" {
				err := e.Close()
				fmt.Println("closed", err)
				return nil
			}
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		fmt.Println("done")
		return nil
	}
}

// TestEndAfterOnesPart: a process is killed or closes the group right after an operation has ended there, however far it is ahead of the
// others. What they complete has the right values, and all of them name it.
func TestEndAfterOnesPart(t *testing.T) {
	t.Parallel()
	for i := range uint64(12) {
		how := []string{"kill", "close"}[i%2]
		t.Run(fmt.Sprintf("%s %d", how, i), func(t *testing.T) {
			t.Parallel()
			choice := rand.New(rand.NewPCG(i, 77))
			ranks, last := 2+choice.IntN(3), 21+choice.IntN(60)
			victim := choice.IntN(ranks)
			ps := processes(t, ranks, "rooted", fmt.Sprintf("COHORT_SHM_ARGS=%d %d %d %s 1000000", i, victim, last, how))
			for r, p := range ps {
				if line := p.next(t, 20*time.Second); line != "running" {
					t.Fatalf("rank %d: %s", r, line)
				}
			}
			for r, p := range ps {
				if r == victim {
					continue
				}
				if line, want := p.next(t, 4*noticed), fmt.Sprintf("ended peer lost %d ", victim); !strings.HasPrefix(line, want) {
					t.Errorf("rank %d: %q, want %q", r, line, want)
				}
			}
		})
	}
}

// TestFaultsInOneWayOperations: a process is killed in the middle of such operations, or stopped for less time than the heartbeat limit.
func TestFaultsInOneWayOperations(t *testing.T) {
	t.Parallel()
	for i := range uint64(8) {
		fault := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP}[i%2]
		t.Run(fmt.Sprintf("%v %d", fault, i), func(t *testing.T) {
			t.Parallel()
			choice := rand.New(rand.NewPCG(i, 78))
			ranks, steps := 2+choice.IntN(3), 1000000
			if fault == syscall.SIGSTOP {
				steps = 500
			}
			ps := processes(t, ranks, "rooted", fmt.Sprintf("COHORT_SHM_ARGS=%d -1 0 none %d", 100+i, steps))
			for r, p := range ps {
				if line := p.next(t, 20*time.Second); line != "running" {
					t.Fatalf("rank %d: %s", r, line)
				}
			}
			victim, want := -1, "done"
			if fault == syscall.SIGKILL {
				time.Sleep(time.Duration(choice.IntN(30)) * time.Millisecond)
				victim = choice.IntN(ranks)
				want = fmt.Sprintf("ended peer lost %d ", victim)
				if err := ps[victim].cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			} else {
				for range 4 {
					p := ps[choice.IntN(ranks)].cmd.Process
					_ = p.Signal(syscall.SIGSTOP)
					time.Sleep(time.Duration(choice.IntN(100)) * time.Millisecond)
					_ = p.Signal(syscall.SIGCONT)
				}
			}
			for r, p := range ps {
				if r == victim {
					continue
				}
				if line := p.next(t, 4*noticed); !strings.HasPrefix(line, want) {
					t.Errorf("rank %d: %q, want %q", r, line, want)
				}
			}
		})
	}
}
