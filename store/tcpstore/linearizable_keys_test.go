// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// keysOfStore are few, so that calls meet each other; the last ones are for a barrier each. The state of the store is their values,
// "" for one that is not there.
var keysOfStore = [...]string{"a", "b", "c", "barrier/0", "barrier/1", "barrier/2"}

const plainKeys = 3

type contents [len(keysOfStore)]string

// wideAction is a call on some or all of the keys, by their numbers; wideAnswer what came of it.
type wideAction struct {
	kind  string // multiset, multiget, set, add, delete, check, wait, number, list; a barrier is an arrive and a pass
	keys  string // digits
	value string
}

type wideAnswer struct {
	values string // of multiget, one behind the other
	number int64
	yes    bool
}

// after returns what the call does to the store and what it must answer. It reports false for one that would have waited.
func (a wideAction) after(s contents) (contents, wideAnswer, bool) {
	var out wideAnswer
	all := true
	for _, k := range a.keys {
		key := &s[k-'0']
		switch a.kind {
		case "multiset", "set":
			*key = a.value
		case "multiget":
			out.values += "," + *key
		case "add", "arrive":
			n, _ := strconv.ParseInt(*key, 10, 64)
			*key = strconv.FormatInt(n+1, 10)
			if a.kind == "add" {
				out.number = n + 1
			}
		case "pass":
			all = *key == a.value // the number of those who come
		case "delete":
			out.yes = *key != ""
			*key = ""
		}
		all = all && *key != ""
	}
	switch a.kind {
	case "check":
		out.yes = all
	case "number", "list":
		for _, value := range s {
			if value != "" {
				out.number++
			}
		}
	}
	return s, out, all || a.kind != "multiget" && a.kind != "wait" && a.kind != "pass"
}

// wideModel is a store in which every call, whatever its keys, happens at one moment.
var wideModel = porcupine.Model{
	Init: func() any { return contents{} },
	Step: func(state, input, output any) (bool, any) {
		before := state.(contents)                          //nolint:errcheck // the model's own types
		after, want, ok := input.(wideAction).after(before) //nolint:errcheck // as above
		return ok && want == output.(wideAnswer), after     //nolint:errcheck // as above
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func TestWideModelHasTeeth(t *testing.T) {
	op := func(start, end int64, a wideAction, out wideAnswer) porcupine.Operation {
		return porcupine.Operation{ClientId: int(start), Input: a, Output: out, Call: start, Return: end}
	}
	write := op(1, 10, wideAction{kind: "multiset", keys: "01", value: "x"}, wideAnswer{})
	for name, c := range map[string]struct {
		history []porcupine.Operation
		right   bool
	}{
		"half of a write": {[]porcupine.Operation{
			write, op(2, 3, wideAction{kind: "check", keys: "0"}, wideAnswer{yes: true}),
			op(4, 5, wideAction{kind: "check", keys: "1"}, wideAnswer{}),
		}, false},
		"a number of keys in between": {[]porcupine.Operation{write, op(2, 3, wideAction{kind: "number"}, wideAnswer{number: 1})}, false},
		"a barrier that opens too early": {[]porcupine.Operation{
			op(1, 4, wideAction{kind: "arrive", keys: "3"}, wideAnswer{}),
			op(2, 4, wideAction{kind: "pass", keys: "3", value: "2"}, wideAnswer{}),
			op(5, 8, wideAction{kind: "arrive", keys: "3"}, wideAnswer{}),
		}, false},
		"a barrier": {[]porcupine.Operation{
			op(1, 6, wideAction{kind: "arrive", keys: "3"}, wideAnswer{}),
			op(2, 6, wideAction{kind: "pass", keys: "3", value: "2"}, wideAnswer{}),
			op(5, 8, wideAction{kind: "arrive", keys: "3"}, wideAnswer{}), op(9, 10, wideAction{kind: "number"}, wideAnswer{number: 1}),
		}, true},
		"a write at one moment": {[]porcupine.Operation{
			write, op(2, 3, wideAction{kind: "check", keys: "0"}, wideAnswer{}),
			op(4, 5, wideAction{kind: "multiget", keys: "10"}, wideAnswer{values: ",x,x"}),
			op(6, 7, wideAction{kind: "number"}, wideAnswer{number: 2}),
		}, true},
	} {
		if porcupine.CheckOperations(wideModel, c.history) != c.right {
			t.Errorf("%s: want %v", name, c.right)
		}
	}
}

// TestLinearizableOverAllKeys has clients that different loops serve work on several keys at a time, and checks that there is
// one order of all their calls, over all keys, that explains what each of them saw.
func TestLinearizableOverAllKeys(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, 4} {
		for round := range 3 {
			t.Run(fmt.Sprintf("loops=%d/%d", loops, round), func(t *testing.T) {
				t.Parallel()
				wideRound(t, loops, uint64(round))
			})
		}
	}
}

func wideRound(t *testing.T, loops int, seed uint64) {
	t.Helper()
	s := serve(t, tcpstore.WithLoops(loops))
	const goroutines, calls, barrierEvery = 8, 40, 10
	var mu sync.Mutex
	var history []porcupine.Operation
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // of barriers to which not all come
	defer cancel()
	clients := make([]*tcpstore.Client, goroutines)
	for g := range clients {
		clients[g] = connect(t, s.Addr().String(), tcpstore.WithDialect(dialects[g%2])) // the third has no calls on many keys
		if has, err := clients[g].HasBarrier(ctx); err != nil || !has {                 // a question that leaves a key behind for a moment
			t.Fatalf("has a barrier: %v, %v", has, err)
		}
	}
	var workers sync.WaitGroup
	for g, c := range clients {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			for i := range calls {
				a := randomWide(r, strconv.Itoa(1000*g+i))
				if k := i / barrierEvery; i%barrierEvery == 0 && k > 0 {
					a = wideAction{kind: "pass", keys: strconv.Itoa(plainKeys + k - 1), value: strconv.Itoa(goroutines)}
				}
				if dialects[g%2] == tcpstore.DialectV && (a.kind == "multiget" || a.kind == "wait") {
					continue // PyTorch's protocol has none that are one call
				}
				start := time.Now().UnixNano()
				out, err := runWide(ctx, c, a)
				end := time.Now().UnixNano()
				if errors.Is(err, store.ErrTimeout) && (a.kind == "multiget" || a.kind == "wait") {
					continue // it changed nothing
				} else if err != nil {
					t.Errorf("%+v: %v", a, err)
					return
				}
				mu.Lock()
				if a.kind == "pass" {
					arrival := wideAction{kind: "arrive", keys: a.keys}
					history = append(history, porcupine.Operation{
						ClientId: goroutines + g, Input: arrival, Output: out,
						Call: start, Return: end,
					})
				}
				history = append(history, porcupine.Operation{ClientId: g, Input: a, Output: out, Call: start, Return: end})
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if t.Failed() {
		return
	}
	result, info := porcupine.CheckOperationsVerbose(wideModel, history, 20*time.Second)
	t.Logf("%d calls: %v", len(history), result)
	if len(history) < goroutines*calls/4 {
		t.Errorf("only %d calls were answered", len(history))
	}
	if result != porcupine.Ok {
		file := filepath.Join(t.ArtifactDir(), "history.html")
		_ = porcupine.VisualizePath(wideModel, info, file)
		t.Errorf("not linearizable (%v): see %s", result, file)
	}
}

func randomWide(r *rand.Rand, unique string) wideAction {
	one := strconv.Itoa(r.IntN(plainKeys))
	some := one
	if other := strconv.Itoa(r.IntN(plainKeys)); other != one {
		some += other
	}
	kinds := []string{
		"multiset", "multiset", "multiset", "multiget", "multiget", "set", "add", "delete", "delete", "check",
		"wait", "number", "list",
	}
	a := wideAction{kind: kinds[r.IntN(len(kinds))], keys: some, value: unique}
	switch a.kind {
	case "set", "add", "delete":
		a.keys = one
	case "number", "list":
		a.keys = ""
	}
	return a
}

func runWide(ctx context.Context, c *tcpstore.Client, a wideAction) (out wideAnswer, err error) {
	var keys []string
	for _, k := range a.keys {
		keys = append(keys, keysOfStore[k-'0'])
	}
	patient, cancel := context.WithTimeout(ctx, 20*time.Millisecond) // for a key that may never come
	defer cancel()
	switch a.kind {
	case "multiset":
		values := make([][]byte, len(keys))
		for i := range values {
			values[i] = []byte(a.value)
		}
		err = c.MultiSet(ctx, keys, values)
	case "multiget":
		var values [][]byte
		values, err = c.MultiGet(patient, keys...)
		for _, v := range values {
			out.values += "," + string(v)
		}
	case "set":
		err = c.Set(ctx, keys[0], []byte(a.value))
	case "add":
		out.number, err = c.Add(ctx, keys[0], 1)
	case "delete":
		out.yes, err = c.Delete(ctx, keys[0])
	case "check":
		out.yes, err = c.Check(ctx, keys...)
	case "wait":
		err = c.Wait(patient, keys...)
	case "pass":
		var size int
		if size, err = strconv.Atoi(a.value); err == nil {
			err = c.Barrier(ctx, keys[0], size)
		}
	case "number":
		var n int
		n, err = c.NumKeys(ctx)
		out.number = int64(n)
	case "list":
		var all []string
		all, err = c.ListKeys(ctx)
		out.number = int64(len(all))
	}
	return out, err
}
