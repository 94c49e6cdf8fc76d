// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpool

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pool returns an empty one.
func pool(t *testing.T) *Pool {
	t.Helper()
	if raceDetector {
		t.Skip("nothing is recycled under the race detector")
	}
	p := New()
	t.Cleanup(p.Close)
	return p
}

func (p *Pool) waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.kept
}

// settle collects until the pool holds want bytes.
func settle(t *testing.T, p *Pool, want int) {
	t.Helper()
	for range 200 {
		runtime.GC()
		if p.waiting() == want {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%d bytes wait in the pool, want %d", p.waiting(), want)
}

func get(t *testing.T, p *Pool, n int) *tensor.Storage {
	t.Helper()
	s, err := p.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	if s.Len() != n {
		t.Fatalf("%d bytes, want %d", s.Len(), n)
	}
	return s
}

func data(t *testing.T, s *tensor.Storage) []byte {
	t.Helper()
	b, err := s.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestForgotten: an unreachable block comes back and is lent again.
func TestForgotten(t *testing.T) {
	p := pool(t)
	first := uintptr(unsafe.Pointer(unsafe.SliceData(data(t, get(t, p, 1<<20)))))
	settle(t, p, 1<<20)
	s := get(t, p, 1<<20-5)
	if again := uintptr(unsafe.Pointer(unsafe.SliceData(data(t, s)))); again != first {
		t.Errorf("a block at %#x, want the one at %#x", again, first)
	}
	if p.waiting() != 0 {
		t.Errorf("%d bytes wait while they are lent", p.waiting())
	}
	runtime.KeepAlive(s)
}

// TestSliceKeeps: a slice of a block, even its last byte, keeps it from being lent again when storage and tensor are gone.
func TestSliceKeeps(t *testing.T) {
	p := pool(t)
	const n = 1 << 20
	s := get(t, p, n)
	b := data(t, s)
	b[n-1] = 42
	last := b[n-1:]
	other := get(t, p, n)
	data(t, other)[n-1] = 1
	s, b, other = nil, nil, nil //nolint:ineffassign,wastedassign // what the test is about
	settle(t, p, n)
	for range 4 {
		x := get(t, p, n)
		clear(data(t, x))
		runtime.GC()
		x.Release()
	}
	if last[0] != 42 {
		t.Fatal("a block was lent while a slice of it was in use")
	}
	runtime.KeepAlive(last)
}

// TestReleased: a released block is there at once, and its finalizer does not bring it a second time.
func TestReleased(t *testing.T) {
	p := pool(t)
	s := get(t, p, 100_000)
	first := unsafe.SliceData(data(t, s))
	s.Release()
	s.Release()
	again := get(t, p, 100_000)
	if unsafe.SliceData(data(t, again)) != first {
		t.Error("a released block was not lent again")
	}
	if p.waiting() != 0 {
		t.Errorf("%d bytes wait", p.waiting())
	}
	again = nil
	settle(t, p, round(100_000))
	runtime.KeepAlive(again)
}

// TestHoldersNeverShare lends and forgets blocks of many sizes while collections run; each holder finds what it
// wrote.
func TestHoldersNeverShare(t *testing.T) {
	if raceDetector {
		t.Skip("nothing is recycled under the race detector")
	}
	p := New()
	defer p.Close()
	type holding struct {
		b    []byte
		mark byte
	}
	done := make(chan struct{})
	for g := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			rnd := rand.New(rand.NewPCG(7, uint64(g)))
			var held []holding
			for i := range 400 {
				s, err := p.Get(smallest + rnd.IntN(200_000))
				if err != nil {
					t.Error(err)
					return
				}
				b, _ := s.Bytes()
				mark := byte(g*61 + i)
				for j := 0; j < len(b); j += 512 {
					b[j] = mark
				}
				b[len(b)-1] = mark
				switch rnd.IntN(4) {
				case 0:
					s.Release()
				case 1:
					held = append(held, holding{b[rnd.IntN(len(b)/512)*512:], mark})
				}
				if len(held) > 20 {
					k := rnd.IntN(len(held))
					h := held[k]
					if h.b[0] != h.mark || h.b[len(h.b)-1] != h.mark {
						t.Error("a block was lent to two")
						return
					}
					held = slices.Delete(held, k, k+1)
				}
				if i%50 == 0 {
					runtime.GC()
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
}

// TestNeverCollects: however much is lent and forgotten, the program decides when to collect.
func TestNeverCollects(t *testing.T) {
	if raceDetector {
		t.Skip("nothing is recycled under the race detector")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(4 << 30))
	p := New()
	defer p.Close()
	var before, after debug.GCStats
	debug.ReadGCStats(&before)
	for range 40 {
		get(t, p, 4<<20)
		time.Sleep(100 * time.Microsecond) // a collection would run beside
	}
	debug.ReadGCStats(&after)
	if after.NumGC != before.NumGC {
		t.Errorf("%d collections that the program has not asked for", after.NumGC-before.NumGC)
	}
}

func TestIdleBlocksGo(t *testing.T) {
	if raceDetector {
		t.Skip("nothing is recycled under the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		p := New()
		defer p.Close()
		a, b := get(t, p, 1<<20), get(t, p, 1<<20)
		a.Release()
		b.Release()
		time.Sleep(idle + time.Second)
		get(t, p, 1<<20).Release() // one of them is still wanted
		time.Sleep(idle)
		synctest.Wait()
		if p.waiting() != 1<<20 {
			t.Errorf("%d bytes wait after one of two blocks was idle, want %d", p.waiting(), 1<<20)
		}
		time.Sleep(2 * idle)
		synctest.Wait()
		if p.waiting() != 0 {
			t.Errorf("%d bytes stay pooled although they are not used", p.waiting())
		}
		if p.mu.trim != nil || len(p.mu.classes) > 0 {
			t.Error("an empty pool still works")
		}
	})
}

func TestBounds(t *testing.T) {
	p := pool(t)
	var all []*tensor.Storage
	for range keep/(32<<20) + 3 {
		all = append(all, get(t, p, 32<<20))
	}
	for _, s := range all {
		s.Release()
	}
	if p.waiting() > keep {
		t.Errorf("%d bytes wait, the limit is %d", p.waiting(), keep)
	}
	for _, n := range []int{0, 1, smallest - 1, keep/2 + 1} {
		s := get(t, p, n)
		if s.Origin() != "heap" {
			t.Errorf("%d bytes come from %q, want the heap", n, s.Origin())
		}
	}
	if _, err := p.Get(-1); err == nil {
		t.Error("a negative length was accepted")
	}
	p.Close()
	if s := get(t, p, 1<<20); s.Origin() != "heap" {
		t.Error("a closed pool lends")
	}
}

func TestRound(t *testing.T) {
	for _, n := range []int{smallest, smallest + 1, 100_000, 1 << 20, 1<<20 + 1, 3 << 20, 64<<20 - 1, keep / 2} {
		got := round(n)
		if got < n || got > n+n/8+1 || got%(8<<10) != 0 || round(got) != got {
			t.Errorf("%d bytes are rounded to %d", n, got)
		}
	}
}
