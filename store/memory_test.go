// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
)

func TestMemoryTimesOutToTheMillisecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		m.SetTimeout(300 * time.Millisecond)
		begin := time.Now()
		_, err := m.Get(context.Background(), "missing")
		if took := time.Since(begin); took != 300*time.Millisecond {
			t.Errorf("the wait took %v", took)
		}
		want := `store: get "missing": timeout: no answer within the store's timeout of 300ms`
		if !errors.Is(err, ErrTimeout) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		m.SetTimeout(DefaultTimeout)
		begin = time.Now()
		if err := m.Wait(context.Background(), "missing"); !errors.Is(err, ErrTimeout) || time.Since(begin) != 300*time.Second {
			t.Errorf("the default timeout: %v after %v", err, time.Since(begin))
		}
	})
}

func TestMemoryForgetsWaiters(t *testing.T) {
	m := NewMemory()
	m.SetTimeout(time.Millisecond)
	for range 100 {
		_, _ = m.Get(context.Background(), "missing")
		_ = m.Wait(context.Background(), "a", "b")
		_, _ = m.QueuePop(context.Background(), "q", true)
	}
	if n := len(m.data.waiters); n != 0 {
		t.Errorf("%d keys still have waiters", n)
	}
	for range 100 {
		_ = m.QueuePush(context.Background(), "q", []byte("x"))
		_, _ = m.QueuePop(context.Background(), "q", false)
	}
	if n := len(m.data.queues); n != 0 {
		t.Errorf("%d empty queues are kept", n)
	}
}

func TestMemoryQueueCountsAsKey(t *testing.T) {
	m, ctx := NewMemory(), context.Background()
	_ = m.QueuePush(ctx, "q", []byte("x"))
	if ok, err := m.Check(ctx, "q"); !ok || err != nil {
		t.Errorf("check of a queue with an item: %v, %v", ok, err)
	}
	if n, _ := m.NumKeys(ctx); n != 0 {
		t.Errorf("the queue is counted among %d keys", n)
	}
	if _, err := m.QueuePop(ctx, "q", true); err != nil {
		t.Error(err)
	}
	if ok, _ := m.Check(ctx, "q"); ok {
		t.Error("an empty queue exists")
	}
}

func TestMemoryCloneOutlivesTheFirst(t *testing.T) {
	m, ctx := NewMemory(), context.Background()
	m.SetTimeout(time.Minute)
	c, err := m.Clone(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = m.Set(ctx, "k", []byte("v"))
	_ = m.Close()
	if v, err := c.Get(ctx, "k"); string(v) != "v" || err != nil || c.Timeout() != time.Minute {
		t.Errorf("got %q, %v, %v", v, err, c.Timeout())
	}
	if err := m.Set(ctx, "k", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("set on the closed handle: %v", err)
	}
}

func TestWaitErrorNamesKeys(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	if err := storeop.WaitError("op", ctx, "k"); err != nil {
		t.Errorf("a living context: %v", err)
	}
	cancel(errors.New("the user pressed a key"))
	err := storeop.WaitError("store: wait", ctx, strings.Split("a b c d e f g h i j", " ")...)
	want := `store: wait "a, b, c, d, e, f, g, h and 2 more": cancelled: the user pressed a key`
	if err.Error() != want || !errors.Is(err, context.Canceled) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// A queue that lives in a value behaves as the store's own.
func TestQueueFallbackModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		own, plain := NewMemory(), coreOnly{NewMemory()}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				item := rapid.SliceOfN(rapid.Byte(), 0, 10).Draw(t, "item")
				a, b := QueuePush(ctx, own, "q", item), QueuePush(ctx, plain, "q", item)
				if a != nil || b != nil {
					t.Fatal(a, b)
				}
			},
			"pop": func(t *rapid.T) {
				a, errA := QueuePop(ctx, own, "q", false)
				b, errB := QueuePop(ctx, plain, "q", false)
				if string(a) != string(b) || cohort.CodeOf(errA) != cohort.CodeOf(errB) {
					t.Fatalf("%q, %v and %q, %v", a, errA, b, errB)
				}
			},
			"length": func(t *rapid.T) {
				a, _ := QueueLen(ctx, own, "q")
				b, err := QueueLen(ctx, plain, "q")
				if a != b || err != nil {
					t.Fatal(a, b, err)
				}
			},
		})
	})
}

func TestQueueFallbackRefusesForeignValues(t *testing.T) {
	ctx := context.Background()
	s := coreOnly{NewMemory()}
	good := newStamp(queueMagic)
	for _, value := range []string{
		"x", "something else that is long enough to hold a stamp", string(good) + "\x01", string(good) + "\xff\xff\xff\xff",
		string(good) + "\x01\x00\x00\x00xy",
	} {
		_ = s.Set(ctx, "q"+queueSuffix, []byte(value))
		if _, err := QueuePop(ctx, s, "q", true); !errors.Is(err, cohort.Protocol) {
			t.Errorf("pop on %q: %v", value, err)
		}
		if err := QueuePush(ctx, s, "q", nil); !errors.Is(err, cohort.Protocol) {
			t.Errorf("push on %q: %v", value, err)
		}
	}
}

// coreOnly hides every optional operation.
type coreOnly struct{ Store }

// An append that meets a deletion begins anew instead of bringing the old value back.
func TestAppendFallbackMeetsDelete(t *testing.T) {
	ctx := context.Background()
	m := NewMemory()
	_ = m.Set(ctx, "k", []byte("old"))
	s := &deleting{coreOnly{m}, m}
	if err := Append(ctx, s, "k", []byte("new")); err != nil {
		t.Fatal(err)
	}
	if v, _ := m.Get(ctx, "k"); string(v) != "new" {
		t.Errorf("got %q", v)
	}
}

// deleting removes the key between the read and the first write of an append.
type deleting struct {
	coreOnly
	m *Memory
}

func (d *deleting) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if string(expected) == "old" {
		_, _ = d.m.Delete(ctx, key)
	}
	return d.m.CompareAndSet(ctx, key, expected, desired)
}

func TestBarrierTellsHowManyCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		m.SetTimeout(time.Second)
		for range 2 {
			go func() { _ = Barrier(context.Background(), m, "b", 5) }()
		}
		synctest.Wait()
		err := Barrier(context.Background(), m, "b", 5)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "3 of 5 have arrived") {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if err := Barrier(context.Background(), m, "b", 0); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("a world of no ranks: %v", err)
		}
	})
}

func TestBarrierHoldsAndRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		const world = 6
		var before, after [4]int
		done := make(chan error, world)
		lock := make(chan struct{}, 1)
		for range world {
			go func() {
				for round := range before {
					time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
					lock <- struct{}{}
					before[round]++
					<-lock
					if err := Barrier(context.Background(), m, "b", world); err != nil {
						done <- err
						return
					}
					lock <- struct{}{}
					if before[round] != world {
						t.Errorf("round %d: passed when %d had come", round, before[round])
					}
					after[round]++
					<-lock
				}
				done <- nil
			}()
		}
		for range world {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		// What a round needs goes with it: a job may pass millions of barriers.
		if keys, err := m.ListKeys(context.Background()); len(keys) != 1 || err != nil {
			t.Errorf("%d rounds left the keys %q, %v", len(before), keys, err)
		}
	})
}
