// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/faultnet"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// action is one call on one key and answer what came of it.
type action struct {
	kind               string // set, get, add, cas, delete, check
	key                string
	value, expected    string
	delta              int64
	dialect, goroutine string
}

type answer struct {
	unknown bool // the connection was lost: it may have happened, now or later, or never
	value   string
	sum     int64
	yes     bool
}

// cell is the state of one key.
type cell struct {
	there bool
	value string
}

// steps returns the states that a may lead to from c when its answer is out.
func steps(c cell, a action, out answer) []cell {
	next, want := c, answer{}
	switch a.kind {
	case "set":
		next = cell{true, a.value}
	case "get":
		if !c.there && !out.unknown {
			return nil // it would have waited
		}
		want.value = c.value
	case "add":
		n, _ := strconv.ParseInt(c.value, 10, 64)
		want.sum = n + a.delta
		next = cell{true, strconv.FormatInt(want.sum, 10)}
	case "cas":
		switch {
		case c.there && c.value == a.expected, !c.there && a.expected == "":
			next = cell{true, a.value}
			want.value = a.value
		case c.there:
			want.value = c.value
		default:
			want.value = a.expected
		}
	case "delete":
		want.yes = c.there
		next = cell{}
	case "check":
		want.yes = c.there
	}
	if out.unknown {
		return []cell{c, next}
	}
	if want != out {
		return nil
	}
	return []cell{next}
}

// storeModel is what a store is to those who use it at the same time: one key after the other, one call at a time.
var storeModel = func() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, op := range history {
				key := op.Input.(action).key //nolint:errcheck // all inputs are actions
				byKey[key] = append(byKey[key], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() []any { return []any{cell{}} },
		Step: func(state, input, output any) []any {
			var states []any
			for _, s := range steps(state.(cell), input.(action), output.(answer)) { //nolint:errcheck // the model's own types
				states = append(states, s)
			}
			return states
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%+v -> %+v", input, output)
		},
	}
	return m.ToModel()
}()

func TestLinearizabilityModelHasTeeth(t *testing.T) {
	op := func(start, end int64, a action, out answer) porcupine.Operation {
		a.key = "k"
		return porcupine.Operation{ClientId: int(start), Input: a, Output: out, Call: start, Return: end}
	}
	stale := []porcupine.Operation{
		op(1, 2, action{kind: "set", value: "a"}, answer{}), op(3, 4, action{kind: "set", value: "b"}, answer{}),
		op(5, 6, action{kind: "get"}, answer{value: "a"}),
	}
	lost := []porcupine.Operation{
		op(1, 2, action{kind: "add", delta: 1}, answer{sum: 1}), op(3, 4, action{kind: "add", delta: 1}, answer{sum: 1}),
	}
	perhaps := []porcupine.Operation{
		op(1, math.MaxInt64, action{kind: "add", delta: 1}, answer{unknown: true}), op(3, 4, action{kind: "add", delta: 1}, answer{sum: 1}),
		op(5, 6, action{kind: "add", delta: 1}, answer{sum: 3}),
	}
	twice := append(perhaps[:2:2], op(5, 6, action{kind: "add", delta: 1}, answer{sum: 4}))
	for name, history := range map[string][]porcupine.Operation{"stale read": stale, "lost add": lost, "add done twice": twice} {
		if porcupine.CheckOperations(storeModel, history) {
			t.Errorf("a %s passes for correct", name)
		}
	}
	if !porcupine.CheckOperations(storeModel, perhaps) {
		t.Error("a lost call that did happen is refused")
	}
}

// TestLinearizable has clients of every dialect work on a few keys while their connections are cut, and checks that
// what they saw has an order that explains it. A call whose connection was lost may have happened or not; a call that
// returned has happened once, between its start and its end.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	for round := range 4 {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			t.Parallel()
			linearizableRound(t, rand.New(rand.NewPCG(uint64(round), 7)), tcpstore.WithLoops(1+2*(round%2)))
		})
	}
}

func linearizableRound(t *testing.T, random *rand.Rand, opts ...tcpstore.ServerOption) {
	t.Helper()
	s := serve(t, opts...)
	p, err := faultnet.ListenTCP(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.SetDown(faultnet.Fault{Delay: 200 * time.Microsecond}) // so that cuts hit calls that are under way
	const goroutines, calls, cutEvery = 6, 50, 15
	var history recorder
	var made atomic.Int64
	var workers sync.WaitGroup
	for g := range goroutines {
		dialect := dialects[g%len(dialects)]
		c := connect(t, p.Addr(), tcpstore.WithDialect(dialect), tcpstore.WithWaitConns(2))
		seed := random.Uint64()
		workers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			for i := range calls {
				a := randomAction(r, fmt.Sprintf("%d.%d", g, i))
				a.dialect, a.goroutine = dialect.String(), strconv.Itoa(g)
				history.run(t, c, g, a)
				// Cuts go by calls and not by time: on a busy machine most calls would be lost, and the orders of lost
				// calls are too many to try.
				if made.Add(1)%cutEvery == 0 {
					p.Cut()
				}
			}
		})
	}
	workers.Wait()

	result, info := porcupine.CheckOperationsVerbose(storeModel, history.ops, 20*time.Second)
	t.Logf("%d calls, %d with unknown end, %d without effect: %v", len(history.ops), history.unknown, history.dropped, result)
	if len(history.ops) < calls || history.unknown == 0 {
		t.Errorf("the history has %d calls, %d of them with unknown end: the faults did not do their work", len(history.ops),
			history.unknown)
	}
	if result != porcupine.Ok {
		file := filepath.Join(t.ArtifactDir(), "history.html")
		_ = porcupine.VisualizePath(storeModel, info, file)
		t.Errorf("not linearizable (%v): see %s", result, file)
	}
}

func randomAction(r *rand.Rand, unique string) action {
	if r.IntN(4) == 0 {
		return action{kind: []string{"add", "add", "get"}[r.IntN(3)], key: "counter", delta: int64(r.IntN(9)) + 1}
	}
	a := action{key: "register" + strconv.Itoa(r.IntN(3)), value: unique}
	a.kind = []string{"set", "set", "get", "get", "cas", "delete", "check"}[r.IntN(7)]
	if a.kind == "cas" && r.IntN(2) == 0 {
		a.expected = fmt.Sprintf("%d.%d", r.IntN(6), r.IntN(50))
	}
	return a
}

// recorder writes down calls as they happen.
type recorder struct {
	mu      sync.Mutex
	ops     []porcupine.Operation
	unknown int
	dropped int
}

func (h *recorder) run(t *testing.T, c *tcpstore.Client, client int, a action) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if a.kind == "get" {
		ctx, cancel = context.WithTimeout(ctx, 3*time.Millisecond)
		defer cancel()
	}
	var out answer
	var err error
	start := time.Now().UnixNano()
	switch a.kind {
	case "set":
		err = c.Set(ctx, a.key, []byte(a.value))
	case "get":
		var v []byte
		v, err = c.Get(ctx, a.key)
		out.value = string(v)
	case "add":
		out.sum, err = c.Add(ctx, a.key, a.delta)
	case "cas":
		var v []byte
		v, err = c.CompareAndSet(ctx, a.key, []byte(a.expected), []byte(a.value))
		out.value = string(v)
	case "delete":
		out.yes, err = c.Delete(ctx, a.key)
	case "check":
		out.yes, err = c.Check(ctx, a.key)
	}
	end := time.Now().UnixNano()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
	case a.kind == "get" || a.kind == "check", errors.Is(err, cohort.Unavailable):
		h.dropped++ // it changed nothing
		return
	case errors.Is(err, cohort.PeerLost):
		h.unknown++
		out, end = answer{unknown: true}, math.MaxInt64
	case errors.Is(err, store.ErrTimeout):
		t.Errorf("%+v: %v", a, err)
		return
	default:
		t.Errorf("%+v: %v", a, err)
		return
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: a, Output: out, Call: start, Return: end})
}
