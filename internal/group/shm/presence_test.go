// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/tensor"
)

// noticed bounds how long a rank may take to learn of a death: five times what is promised.
const noticed = 5 * time.Second

// losses is where the ranks of this process put what OnLost reports.
var losses = make(chan transport.Loss, 64)

func init() { //nolint:gochecknoinits // roles refer to functions of this file
	// late runs one barrier, then all ranks but the last one go into the next.
	roles["late"] = func(e *Engine, _ []string) error {
		ctx := context.Background()
		if err := e.Run(ctx, &collective.Request{Kind: collective.Barrier}); err != nil {
			return err
		}
		if e.Rank() == e.Size()-1 {
			fmt.Println("late")
			time.Sleep(time.Minute)
		}
		go func() {
			for !e.steps.took(e.Rank(), 3) { // joined, first barrier, second barrier
				time.Sleep(time.Millisecond)
			}
			fmt.Println("waiting")
		}()
		err := e.Run(ctx, &collective.Request{Kind: collective.Barrier, Tag: 1})
		fmt.Println("ended", cohort.CodeOf(err), err)
		return nil
	}
	// idle runs one barrier, then nothing, and prints the losses.
	roles["idle"] = func(e *Engine, _ []string) error {
		if err := e.Run(context.Background(), &collective.Request{Kind: collective.Barrier}); err != nil {
			return err
		}
		fmt.Println("idle")
		loss := <-losses
		for loss.How == transport.Left { // another survivor was quicker
			loss = <-losses
		}
		fmt.Println("lost", loss.Rank, loss.How, loss.Err)
		err := e.Run(context.Background(), &collective.Request{Kind: collective.Barrier, Tag: 1})
		fmt.Println("ended", cohort.CodeOf(err), err)
		return nil
	}
	// direct reduces buffers in the segment until that fails, then writes a pattern into its own and prints when another rank
	// has changed it.
	roles["direct"] = func(e *Engine, args []string) error {
		n, _ := strconv.Atoi(args[0])
		s, err := e.Alloc(n)
		if err != nil {
			return err
		}
		b, err := s.Bytes()
		if err != nil {
			return err
		}
		fmt.Println("running")
		for tag := uint32(1); err == nil; tag++ {
			err = e.Run(context.Background(), &collective.Request{Kind: collective.AllReduce, Tag: tag, DType: tensor.Uint8, Out: b})
		}
		for i := range b {
			b[i] = 0xa5
		}
		fmt.Println("ended", cohort.CodeOf(err), err)
		var word string
		if _, err := fmt.Scanln(&word); err != nil { // the parent sends a line
			return err
		}
		for i, x := range b {
			if x != 0xa5 {
				fmt.Println("changed", i, x)
				return nil
			}
		}
		fmt.Println("kept")
		return nil
	}
}

// TestDeathWhileAnotherIsLate kills a rank that has taken its step while a third one is late.
func TestDeathWhileAnotherIsLate(t *testing.T) {
	t.Parallel()
	for victim := range 3 {
		ps := processes(t, 4, "late")
		for r, p := range ps {
			if line := p.next(t, 20*time.Second); line != []string{"waiting", "waiting", "waiting", "late"}[r] {
				t.Fatalf("rank %d: %s", r, line)
			}
		}
		if err := ps[victim].cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for r, p := range ps[:3] {
			if r == victim {
				continue
			}
			if line := p.next(t, noticed); !strings.HasPrefix(line, "ended peer lost ") ||
				!strings.Contains(line, "rank "+strconv.Itoa(victim)) {
				t.Errorf("rank %d: %q, want the loss of rank %d", r, line, victim)
			}
		}
	}
}

// TestDeathWhileIdle kills or stops a rank while no operation runs.
func TestDeathWhileIdle(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		ps := processes(t, 3, "idle", "COHORT_SHM_LIMIT=500ms")
		for _, p := range ps {
			if line := p.next(t, 20*time.Second); line != "idle" {
				t.Fatal(line)
			}
		}
		if err := ps[1].cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		for _, r := range []int{0, 2} {
			if line := ps[r].next(t, noticed); !strings.HasPrefix(line, "lost 1 died shm: group: peer lost: rank 1 (peer pid ") {
				t.Errorf("%v, rank %d: %s", signal, r, line)
			}
			if line := ps[r].next(t, noticed); !strings.HasPrefix(line, "ended peer lost ") || !strings.Contains(line, "rank 1") {
				t.Errorf("%v, rank %d: %s", signal, r, line)
			}
		}
	}
}

// TestLeavingIsNoDeath: a rank that closes its engine is distinguished, and only an operation that needs it fails.
func TestLeavingIsNoDeath(t *testing.T) {
	t.Parallel()
	lost := make(chan transport.Loss, 8)
	engines := world(t, 3, func(c *Config) {
		if c.Rank == 0 {
			c.OnLost = func(l transport.Loss) { lost <- l }
		}
	})
	_ = engines[2].Close()
	loss := <-lost
	if loss.Rank != 2 || loss.How != transport.Left || !errors.Is(loss.Err, cohort.PeerLost) {
		t.Errorf("%+v", loss)
	}
	send, recv := &transport.Op{Peer: 1, Buf: []byte{1}}, &transport.Op{Peer: 0, Buf: make([]byte, 1)}
	engines[0].mesh.Send(send)
	engines[1].mesh.Recv(recv)
	if err := engines[1].mesh.Wait(t.Context(), recv); err != nil {
		t.Errorf("a message between the others: %v", err)
	}
}

// TestStoppedRankWritesNothingLater stops a rank inside a reduction of buffers in the segment until the others have given it up
// and use their buffers for something else, then lets it continue.
func TestStoppedRankWritesNothingLater(t *testing.T) {
	t.Parallel()
	for turn := range 6 {
		ps := processes(t, 2, "direct", "COHORT_SHM_ARGS="+strconv.Itoa(64<<20), "COHORT_SHM_LIMIT=300ms")
		for _, p := range ps {
			if line := p.next(t, 20*time.Second); line != "running" {
				t.Fatal(line)
			}
		}
		time.Sleep(time.Duration(20+7*turn) * time.Millisecond) // another moment in each turn
		if err := ps[1].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		line := ps[0].next(t, 20*time.Second)
		if !strings.HasPrefix(line, "ended peer lost ") {
			t.Fatalf("rank 0: %s", line)
		}
		if err := ps[1].cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if line := ps[1].next(t, 20*time.Second); !strings.HasPrefix(line, "ended ") {
			t.Fatalf("the stopped rank: %s", line)
		}
		_, _ = ps[0].stdin.Write([]byte("look\n"))
		if line := ps[0].next(t, 20*time.Second); line != "kept" {
			t.Fatalf("turn %d: the buffer of rank 0 after rank 1 went on: %s", turn, line)
		}
	}
}

// TestPulse: the time in which the looking process itself was stopped does not count.
func TestPulse(t *testing.T) {
	t.Parallel()
	const period, limit = 100 * time.Millisecond, time.Second
	now := time.Unix(1000, 0)
	var p pulse
	if p.stopped(now, 7, period, limit) {
		t.Fatal("still at the first look")
	}
	if now = now.Add(time.Hour); p.stopped(now, 7, period, limit) {
		t.Fatal("an hour without a check counts")
	}
	checks := 0
	for !p.stopped(now, 7, period, limit) {
		now = now.Add(period)
		checks++
	}
	if checks < 8 || checks > 10 {
		t.Errorf("stopped after %d checks", checks)
	}
	if p.stopped(now.Add(period), 8, period, limit) {
		t.Error("a heartbeat does not end it")
	}
}
