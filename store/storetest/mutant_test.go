// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storeop"
	"github.com/cohort-dist/cohort/store"
)

// A suite that finds nothing proves nothing. Each mutant is a store with one fault, and the case that must find it.
var mutants = map[string]struct {
	found string
	wrap  func(*store.Memory) store.Store
}{
	"add loses": {"Numbers", func(m *store.Memory) store.Store { return addLoses{m} }},
	"add races": {"ConcurrentAdds", func(m *store.Memory) store.Store { return addRaces{m} }},
	"set keeps the bytes": {
		"BytesBelongToCaller",
		func(m *store.Memory) store.Store { return &keeps{Memory: m, kept: map[string][]byte{}} },
	},
	"wait does not wait":     {"WaitForMany", func(m *store.Memory) store.Store { return hasty{m} }},
	"no wait ends":           {"WaitersWake", func(m *store.Memory) store.Store { return deaf{m} }},
	"timeout without name":   {"StoreTimeout", func(m *store.Memory) store.Store { return nameless{m} }},
	"deadline ignored":       {"ContextDeadlineWins", func(m *store.Memory) store.Store { return stubborn{m} }},
	"cancel ignored":         {"Cancel", func(m *store.Memory) store.Store { return stubborn{m} }},
	"delete lies":            {"NumKeysDelete", func(m *store.Memory) store.Store { return liar{m} }},
	"compare-and-set wins":   {"CompareSet", func(m *store.Memory) store.Store { return winner{m} }},
	"two winners":            {"ConcurrentCompareAndSet", func(m *store.Memory) store.Store { return twoWinners{m} }},
	"stale reads":            {"Linearizable", func(m *store.Memory) store.Store { return &stale{Memory: m} }},
	"multi-set in pieces":    {"ConcurrentMultiSet", func(m *store.Memory) store.Store { return pieces{m} }},
	"close leaves waiters":   {"Close", func(m *store.Memory) store.Store { return open{m} }},
	"append races":           {"ConcurrentAppends", func(m *store.Memory) store.Store { return appendRaces{m} }},
	"queue is a stack":       {"Queue", func(m *store.Memory) store.Store { return stack{m} }},
	"supports what it lacks": {"ListKeys", func(m *store.Memory) store.Store { return listsNothing{m} }},
}

// TestMutantsAreFound starts itself once for every mutant: in that process it is the suite, which has to fail.
func TestMutantsAreFound(t *testing.T) {
	t.Parallel()
	if mutant, ok := mutants[os.Getenv("COHORT_MUTANT")]; ok {
		Run(t, func(*testing.T) store.Store { return mutant.wrap(store.NewMemory()) },
			optionFunc(func(c *config) { c.patience = time.Second }))
		return
	}
	for name, mutant := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMutantsAreFound$/^"+mutant.found+"$", "-test.v")
			cmd.Env = append(os.Environ(), "COHORT_MUTANT="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !bytes.Contains(out, []byte("--- FAIL: TestMutantsAreFound/"+mutant.found)) {
				t.Errorf("the case %s did not find it: %v\n%s", mutant.found, err, out)
			}
			if bytes.Contains(out, []byte("panic:")) {
				t.Errorf("it was found by a panic:\n%s", out)
			}
		})
	}
}

type addLoses struct{ *store.Memory }

func (m addLoses) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if delta < 0 {
		delta++
	}
	return m.Memory.Add(ctx, key, delta)
}

type addRaces struct{ *store.Memory }

func (m addRaces) Add(ctx context.Context, key string, delta int64) (int64, error) {
	n, err := m.Memory.Add(ctx, key, 0)
	if err != nil {
		return 0, err
	}
	time.Sleep(time.Millisecond)
	_ = m.Set(ctx, key, []byte("0"))
	return m.Memory.Add(ctx, key, n+delta)
}

type keeps struct {
	*store.Memory
	kept map[string][]byte
}

func (m *keeps) Set(ctx context.Context, key string, value []byte) error {
	m.kept[key] = value
	return m.Memory.Set(ctx, key, value)
}

func (m *keeps) Get(ctx context.Context, key string) ([]byte, error) {
	if v, ok := m.kept[key]; ok {
		return v, nil
	}
	return m.Memory.Get(ctx, key)
}

type hasty struct{ *store.Memory }

func (m hasty) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	if all, err := m.Check(ctx, keys...); !all || err != nil {
		return nil, err
	}
	return m.Memory.MultiGet(ctx, keys...)
}

type deaf struct{ *store.Memory }

func (m deaf) Get(ctx context.Context, key string) ([]byte, error) {
	if ok, err := m.Check(ctx, key); ok || err != nil {
		return m.Memory.Get(ctx, key)
	}
	<-ctx.Done()
	return nil, storeop.WaitError("deaf: get", ctx, key)
}

type nameless struct{ *store.Memory }

func (m nameless) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := m.Memory.Get(ctx, key)
	if err != nil {
		err = store.ErrTimeout
	}
	return v, err
}

type stubborn struct{ *store.Memory }

func (m stubborn) Get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return m.Memory.Get(ctx, key)
}

type liar struct{ *store.Memory }

func (m liar) Delete(ctx context.Context, key string) (bool, error) {
	_, err := m.Memory.Delete(ctx, key)
	return true, err
}

type winner struct{ *store.Memory }

func (m winner) CompareAndSet(ctx context.Context, key string, _, desired []byte) ([]byte, error) {
	return desired, m.Set(ctx, key, desired)
}

type twoWinners struct{ *store.Memory }

func (m twoWinners) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	all, err := m.Check(ctx, key)
	if err != nil {
		return nil, err
	}
	var old []byte
	if all {
		old, _ = m.Get(ctx, key)
	}
	time.Sleep(time.Millisecond)
	if !bytes.Equal(old, expected) {
		return old, nil
	}
	return desired, m.Set(ctx, key, desired)
}

type stale struct {
	*store.Memory
}

func (m *stale) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := m.Memory.Get(ctx, key)
	if strings.HasPrefix(key, "register") {
		return []byte("start"), err
	}
	return v, err
}

type pieces struct{ *store.Memory }

func (m pieces) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	for i, key := range keys {
		if err := m.Set(ctx, key, values[i]); err != nil {
			return err
		}
		time.Sleep(10 * time.Microsecond)
	}
	return nil
}

type open struct{ *store.Memory }

func (open) Close() error { return nil }

type appendRaces struct{ *store.Memory }

func (m appendRaces) Append(ctx context.Context, key string, value []byte) error {
	var old []byte
	if ok, _ := m.Check(ctx, key); ok {
		old, _ = m.Get(ctx, key)
	}
	time.Sleep(100 * time.Microsecond)
	return m.Set(ctx, key, append(old, value...))
}

type stack struct{ *store.Memory }

func (m stack) QueuePush(ctx context.Context, key string, value []byte) error {
	var items [][]byte
	for {
		item, err := m.QueuePop(ctx, key, false)
		if err != nil {
			break
		}
		items = append(items, item)
	}
	for _, item := range append([][]byte{value}, items...) {
		_ = m.Memory.QueuePush(ctx, key, item)
	}
	return nil
}

type listsNothing struct{ *store.Memory }

func (listsNothing) ListKeys(context.Context) ([]string, error) { return nil, nil }
