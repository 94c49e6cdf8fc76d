// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
)

func TestJoinFails(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Size: 0},
		{Size: 2, Rank: 2},
		{Size: 2},
		{Size: MaxRanks + 1},
		{Size: 1, Slot: -1},
		{Size: 1, Area: 1 << 30},
	} {
		if _, err := Join(context.Background(), c); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := Join(ctx, Config{Size: 3, Rank: 0, Exchange: newBoard()})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ranks [1 2]") {
		t.Errorf("no rank connected: %v", err)
	}
	b := newBoard()
	_ = b.Set(ctx, "/shm/0", []byte("error no memory left"))
	if _, err := Join(context.Background(), Config{Size: 2, Rank: 1, Exchange: b}); !errors.Is(err, cohort.Unavailable) ||
		!strings.Contains(err.Error(), "no memory left") {
		t.Errorf("rank 0 failed: %v", err)
	}
	_ = b.Set(ctx, "/shm/0", []byte("unix 00112233445566778899aabbccddeeff @cohort-shm-without-listener"))
	if _, err := Join(context.Background(), Config{Size: 2, Rank: 1, Exchange: b}); !errors.Is(err, cohort.Unavailable) ||
		!strings.Contains(err.Error(), "one host") {
		t.Errorf("another host: %v", err)
	}
	_ = b.Set(ctx, "/shm/0", []byte("garbage"))
	if _, err := Join(context.Background(), Config{Size: 2, Rank: 1, Exchange: b}); !errors.Is(err, cohort.Protocol) {
		t.Errorf("garbage: %v", err)
	}
}

// TestWhoCannotJoinIsBlamed: when a rank cannot join because it does not reach another, all ranks blame that one.
func TestWhoCannotJoinIsBlamed(t *testing.T) {
	t.Parallel()
	s := store.NewMemory()
	defer func() { _ = s.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Set(ctx, "/shm/1", []byte("unix 00112233445566778899aabbccddeeff @cohort-shm-of-a-dead-process")); err != nil {
		t.Fatal(err)
	}
	reported := make(chan error, 1)
	var others sync.WaitGroup
	others.Go(func() {
		_, err := Join(ctx, Config{Size: 3, Rank: 2, Exchange: s, OnGiveUp: func(err error) { reported <- err }})
		if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.Unavailable || e.Rank != 1 {
			t.Errorf("who does not reach it: %v", err)
		}
	})
	_, err := Join(ctx, Config{Size: 3, Rank: 0, Exchange: s})
	if e, ok := errors.AsType[*cohort.Error](err); !ok || e.Code != cohort.Unavailable || e.Rank != 1 {
		t.Errorf("who waits for it: %v", err)
	}
	others.Wait()
	select {
	case <-reported:
	default:
		t.Error("the reason why the rank gave up was not reported")
	}
}

// TestUnidentifiedConnectionsAreRefused connects to rank 0 with garbage and wrong secrets while the group forms.
func TestUnidentifiedConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBoard()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	joined := make(chan error, 1)
	var first *Engine
	go func() {
		var err error
		first, err = Join(ctx, Config{Size: 2, Rank: 0, Exchange: b})
		joined <- err
	}()
	value, err := b.Get(ctx, "/shm/0")
	if err != nil {
		t.Fatal(err)
	}
	address := strings.Fields(string(value))[2]
	for _, hello := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte{0}, helloSize), bytes.Repeat([]byte{0xff}, 100)} {
		c, dialErr := net.Dial("unix", address)
		if dialErr != nil {
			t.Fatal(dialErr)
		}
		_, _ = c.Write(hello)
		_ = c.Close()
	}
	second, err := Join(ctx, Config{Size: 2, Rank: 1, Exchange: b})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	_ = second.Close()
}

// TestSilentConnection: a context ends joining although a connection sends nothing.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	b := newBoard()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	joined := make(chan error, 1)
	go func() {
		_, err := Join(ctx, Config{Size: 2, Rank: 0, Exchange: b})
		joined <- err
	}()
	value, err := b.Get(ctx, "/shm/0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", strings.Fields(string(value))[2])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	time.Sleep(20 * time.Millisecond)
	cancel()
	select {
	case err := <-joined:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(helloLimit / 2):
		t.Error("joining goes on after its context ended")
		<-joined
	}
}

// TestForeignSegment: the header of a segment is checked before anything is mapped by it.
func TestForeignSegment(t *testing.T) {
	t.Parallel()
	c := Config{Size: 2, Exchange: newBoard(), Arena: 1 << 20}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	for name, harm := range map[string]func(f *os.File, s *segment){
		"magic":   func(_ *os.File, s *segment) { s.header().magic++ },
		"version": func(_ *os.File, s *segment) { s.header().version++ },
		"ranks":   func(_ *os.File, s *segment) { s.header().ranks++ },
		"area":    func(_ *os.File, s *segment) { s.header().area += pageSize },
		"huge":    func(_ *os.File, s *segment) { s.header().arena = 1 << 62 },
		"total":   func(_ *os.File, s *segment) { s.header().total += pageSize },
	} {
		f, s, err := createSegment(&c)
		if err != nil {
			t.Fatal(err)
		}
		harm(f, s)
		if _, err := openSegment(f, 2); !errors.Is(err, cohort.Protocol) && !errors.Is(err, cohort.Mismatch) {
			t.Errorf("%s: %v", name, err)
		}
		s.unmap()
		_ = f.Close()
	}
	short, err := os.CreateTemp(t.TempDir(), "short")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = short.Close() }()
	if _, err := openSegment(short, 2); !errors.Is(err, cohort.Protocol) {
		t.Errorf("an empty file: %v", err)
	}
}

// checkedBoard is a board that can look for a key, with a wrong answer for one rank.
type checkedBoard struct {
	*board
	wrong string
}

func (b checkedBoard) Check(_ context.Context, keys ...string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if _, ok := b.values[k]; !ok {
			return false, nil
		}
	}
	return true, nil
}

func (b checkedBoard) Get(ctx context.Context, key string) ([]byte, error) {
	if key == b.wrong {
		return []byte("unix 00112233445566778899aabbccddeeff @cohort-shm-without-listener"), nil
	}
	return b.board.Get(ctx, key)
}

// TestAllJoinOrNone: when one rank cannot join, all learn it at once, whatever they wait for, and why.
func TestAllJoinOrNone(t *testing.T) {
	t.Parallel()
	b := newBoard()
	errs := make([]error, 4)
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for r := range errs {
		wg.Go(func() {
			exchange := checkedBoard{board: b}
			if r == 2 {
				exchange.wrong = "/shm/1"
			}
			var e *Engine
			if e, errs[r] = Join(ctx, Config{Rank: r, Size: 4, Exchange: exchange}); e != nil {
				_ = e.Close()
			}
		})
	}
	wg.Wait()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	for r, err := range errs {
		if !errors.Is(err, cohort.Unavailable) && !errors.Is(err, cohort.PeerLost) ||
			!strings.Contains(err.Error(), "one host") && !strings.Contains(err.Error(), "rank 2") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
