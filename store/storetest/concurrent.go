// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-dist/cohort/store"
)

var concurrentCases = []testCase{
	{"ConcurrentAdds", func(s *suite) {
		st := s.store()
		s.addUp([]store.Store{st, st, st, st})
	}},
	{"ConcurrentCompareAndSet", func(s *suite) {
		st := s.store()
		s.oneWins([]store.Store{st, st, st, st})
	}},
	{"ConcurrentAppends", func(s *suite) {
		st := s.store()
		s.appendAll([]store.Store{st, st, st, st})
	}},
	{"ConcurrentMultiSet", func(s *suite) {
		st := s.store()
		s.multiIsAtomic(st, st)
	}},
	{"Linearizable", func(s *suite) {
		st := s.store()
		s.linearizable([]store.Store{st, st, st, st})
	}},
	{"WaitersAndWriters", func(s *suite) {
		st := s.store()
		var wg sync.WaitGroup
		const n = 8
		for rank := range n {
			wg.Go(func() {
				if err := st.Set(s.ctx, fmt.Sprint("addr/", rank), fmt.Append(nil, rank)); err != nil {
					s.Error(err)
				}
				for peer := range n {
					got, err := st.Get(s.ctx, fmt.Sprint("addr/", peer))
					if err != nil || string(got) != strconv.Itoa(peer) {
						s.Errorf("rank %d read %q, %v of rank %d", rank, got, err, peer)
					}
				}
			})
		}
		wg.Wait()
	}},
}

var handleCases = []testCase{
	{"HandlesShare", func(s *suite) {
		h := s.shared(2)
		s.set(h[0], "key", "value")
		s.wantGet(h[1], "key", "value")
		s.wantAdd(h[1], "n", 3, 3)
		s.wantAdd(h[0], "n", 4, 7)
		s.wantCAS(h[1], "key", "value", "new", "new")
		s.wantCAS(h[0], "key", "value", "newer", "new")
		s.must(store.Append(s.ctx, h[0], "key", []byte("er")))
		s.wantGet(h[1], "key", "newer")
		s.wantDelete(h[1], "key", true)
		s.wantCheck(h[0], false, "key")
		s.must(store.MultiSet(s.ctx, h[0], []string{"a", "b"}, [][]byte{[]byte("1"), []byte("2")}))
		s.wantCheck(h[1], true, "a", "b")
	}},
	{"HandlesWake", func(s *suite) {
		h := s.shared(2)
		s.wakes(h[0], h[1])
	}},
	{"HandlesTimeoutsDiffer", func(s *suite) {
		h := s.shared(2)
		h[0].SetTimeout(brief)
		h[1].SetTimeout(s.patience)
		if h[0].Timeout() != brief || h[1].Timeout() != s.patience {
			s.Fatal("two handles share one timeout")
		}
	}},
	{"HandlesConcurrentAdds", func(s *suite) { s.addUp(s.shared(4)) }},
	{"HandlesConcurrentCompareAndSet", func(s *suite) { s.oneWins(s.shared(4)) }},
	{"HandlesConcurrentAppends", func(s *suite) { s.appendAll(s.shared(4)) }},
	{"HandlesConcurrentMultiSet", func(s *suite) {
		h := s.shared(2)
		s.multiIsAtomic(h[0], h[1])
	}},
	{"HandlesQueue", func(s *suite) {
		if s.noQueues {
			return
		}
		h := s.shared(2)
		s.queueOnce(h[0], h[1])
	}},
	{"HandlesLinearizable", func(s *suite) { s.linearizable(s.shared(4)) }},
	{"HandlesClose", func(s *suite) {
		if s.noClose {
			return
		}
		h := s.shared(2)
		s.set(h[0], "key", "value")
		wait := s.background(func() error { return h[1].Wait(s.ctx, "later") })
		s.must(h[0].Close())
		if err := h[0].Set(s.ctx, "key", nil); !errors.Is(err, store.ErrClosed) {
			s.Fatalf("set after Close: %v", err)
		}
		s.wantGet(h[1], "key", "value")
		s.set(h[1], "later", "x")
		s.must(wait())
	}},
}

// each runs f once per handle, concurrently.
func (s *suite) each(handles []store.Store, f func(i int, st store.Store) error) {
	var wg sync.WaitGroup
	for i, st := range handles {
		wg.Go(func() {
			if err := f(i, st); err != nil {
				s.Errorf("handle %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// addUp checks that concurrent adds lose nothing and that every sum is seen once.
func (s *suite) addUp(handles []store.Store) {
	const adds = 40
	var mu sync.Mutex
	seen := map[int64]bool{}
	s.each(handles, func(_ int, st store.Store) error {
		for range adds {
			n, err := st.Add(s.ctx, "n", 1)
			if err != nil {
				return err
			}
			mu.Lock()
			twice := seen[n]
			seen[n] = true
			mu.Unlock()
			if twice {
				return fmt.Errorf("the sum %d was returned twice", n)
			}
		}
		return nil
	})
	s.wantAdd(handles[0], "n", 0, int64(adds*len(handles)))
}

// oneWins checks that of several who create a key, or change the same value, exactly one wins.
func (s *suite) oneWins(handles []store.Store) {
	previous := ""
	for round := range 10 {
		winners := make([]string, len(handles))
		s.each(handles, func(i int, st store.Store) error {
			mine := fmt.Sprint("round ", round, " of ", i)
			got, err := st.CompareAndSet(s.ctx, "leader", []byte(previous), []byte(mine))
			winners[i] = string(got)
			return err
		})
		for i, w := range winners {
			if w != winners[0] {
				s.Fatalf("round %d: handle %d sees %q, handle 0 %q", round, i, w, winners[0])
			}
		}
		s.wantGet(handles[0], "leader", winners[0])
		previous = winners[0]
	}
}

// letter is what handle i appends.
func letter(i int) []byte { return []byte("abcdefgh"[i : i+1]) }

// appendAll checks that appends of different bytes lose nothing, and for a store with its own append equal ones neither.
func (s *suite) appendAll(handles []store.Store) {
	const appends = 15
	own := store.Supports(handles[0], store.FeatureAppend)
	s.each(handles, func(i int, st store.Store) error {
		for range appends {
			if err := store.Append(s.ctx, st, "log", letter(i)); err != nil {
				return err
			}
			if own {
				if err := store.Append(s.ctx, st, "same", []byte("x")); err != nil {
					return err
				}
			}
		}
		return nil
	})
	got, err := handles[0].Get(s.ctx, "log")
	s.must(err)
	for i := range handles {
		if n := bytes.Count(got, letter(i)); n != appends {
			s.Fatalf("%d of %d appends of handle %d are there: %q", n, appends, i, got)
		}
	}
	if !own {
		return
	}
	got, err = handles[0].Get(s.ctx, "same")
	s.must(err)
	if len(got) != appends*len(handles) {
		s.Fatalf("%d of %d equal appends are there", len(got), appends*len(handles))
	}
}

// multiIsAtomic checks that a multi-get sees all of a multi-set or nothing, where the store has both.
func (s *suite) multiIsAtomic(writer, reader store.Store) {
	if !store.Supports(writer, store.FeatureMultiSet) || !store.Supports(reader, store.FeatureMultiGet) {
		s.Log("no multi-set and multi-get of its own")
		return
	}
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	write := func(i int) error {
		values := make([][]byte, len(keys))
		for k := range values {
			values[k] = fmt.Append(nil, i)
		}
		return store.MultiSet(s.ctx, writer, keys, values)
	}
	s.must(write(0))
	var wg sync.WaitGroup
	var written atomic.Bool
	wg.Go(func() {
		defer written.Store(true)
		for i := range 100 {
			if err := write(i + 1); err != nil {
				s.Error(err)
				return
			}
		}
	})
	for !written.Load() { // to read only at the beginning would see little
		values, err := store.MultiGet(s.ctx, reader, keys...)
		if err != nil {
			s.Error(err)
			break
		}
		for _, v := range values {
			if !bytes.Equal(v, values[0]) {
				s.Errorf("half a multi-set is visible: %q", values)
				wg.Wait()
				return
			}
		}
	}
	wg.Wait()
}

// registerOp is an operation on one key, for the check of linearizability.
type registerOp struct {
	kind              string
	key               int
	expected, desired string
}

type registerState struct {
	present bool
	value   string
}

// register is what one key of a store does.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(registerOp).key //nolint:errcheck // the history is made below
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return registerState{} },
	Step: func(state, input, output any) (bool, any) {
		now, op, out := state.(registerState), input.(registerOp), output.(string) //nolint:errcheck // the history is made below
		switch op.kind {
		case "set":
			return true, registerState{true, op.desired}
		case "get":
			return now.present && now.value == out, now
		case "check":
			return out == strconv.FormatBool(now.present), now
		case "delete":
			return true, registerState{}
		}
		switch { // compare-and-set
		case !now.present && op.expected != "":
			return out == op.expected, now
		case now.present && now.value != op.expected:
			return out == now.value, now
		}
		return out == op.desired, registerState{true, op.desired}
	},
}

// linearizable checks a history of concurrent operations on a few keys. One key is never deleted, so that it can be read.
func (s *suite) linearizable(handles []store.Store) {
	const steps, keys = 40, 3
	name := func(key int) string { return fmt.Sprint("register", key) }
	s.set(handles[0], name(0), "start")
	var mu sync.Mutex
	begin := time.Now()
	history := []porcupine.Operation{{Input: registerOp{kind: "set", desired: "start"}, Output: ""}}
	s.each(handles, func(client int, st store.Store) error {
		last := make([]string, keys)
		for i := range steps {
			op := registerOp{key: (i + client) % keys, desired: fmt.Sprint(client, ".", i)}
			op.expected = last[op.key]
			op.kind = [...]string{"set", "get", "compare-and-set", "check", "delete", "compare-and-set"}[(i*7+client*5+i/6)%6]
			if op.kind == "delete" && op.key == 0 || op.kind == "get" && op.key != 0 {
				op.kind = "compare-and-set"
			}
			var out string
			var value []byte
			var err error
			call := time.Since(begin).Nanoseconds() + 1
			switch op.kind {
			case "set":
				err = st.Set(s.ctx, name(op.key), []byte(op.desired))
				value = []byte(op.desired)
			case "get":
				value, err = st.Get(s.ctx, name(op.key))
				out = string(value)
			case "check":
				var all bool
				all, err = st.Check(s.ctx, name(op.key))
				out = strconv.FormatBool(all)
				value = []byte(last[op.key])
			case "delete":
				_, err = st.Delete(s.ctx, name(op.key))
			default:
				value, err = st.CompareAndSet(s.ctx, name(op.key), []byte(op.expected), []byte(op.desired))
				out = string(value)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", op.kind, err)
			}
			last[op.key] = string(value)
			mu.Lock()
			history = append(history, porcupine.Operation{
				ClientId: client, Input: op, Output: out, Call: call, Return: time.Since(begin).Nanoseconds() + 1,
			})
			mu.Unlock()
		}
		return nil
	})
	if s.Failed() {
		return
	}
	if result := porcupine.CheckOperationsTimeout(register, history, s.patience); result == porcupine.Illegal {
		s.Fatalf("the history of %d operations is not linearizable", len(history))
	} else if result == porcupine.Unknown {
		s.Logf("no verdict on the history within %v", s.patience)
	}
}
