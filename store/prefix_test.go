// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
	"github.com/cohort-dist/cohort/store/storetest"
)

func TestPrefixKeys(t *testing.T) {
	m, ctx := store.NewMemory(), t.Context()
	_ = store.Prefix("outer", store.Prefix("inner", m)).Set(ctx, "k", []byte("v"))
	_ = store.Prefix("", m).Set(ctx, "k", []byte("v"))
	_ = store.Prefix("default_pg", m).MultiSet(ctx, []string{"0//cpu//0"}, [][]byte{nil})
	for _, key := range []string{"inner/outer/k", "/k", "default_pg/0//cpu//0"} {
		if ok, err := m.Check(ctx, key); !ok || err != nil {
			t.Errorf("%q is not there: %v", key, err)
		}
	}
}

func TestPrefixUnderlyingStore(t *testing.T) {
	file, err := filestore.Open(t.Context(), filepath.Join(t.TempDir(), "store"), filestore.WithWorldSize(1))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, s := range []store.Store{store.NewMemory(), file, storetest.Minimal(store.NewMemory())} {
		if p := store.Prefix("prefix", s); p.Underlying() != s {
			t.Errorf("%T: underlying store %v", s, p.Underlying())
		}
	}
}

func TestUnderlyingNonPrefixStore(t *testing.T) {
	m := store.NewMemory()
	once := store.Prefix("p", m)
	thrice := store.Prefix("p", store.Prefix("p", once))
	for _, s := range []store.Store{m, once, thrice} {
		if got := store.UnderlyingNonPrefix(s); got != store.Store(m) {
			t.Errorf("%v: got %v", s, got)
		}
	}
	if thrice.Underlying() == store.Store(m) {
		t.Error("Underlying went through all prefixes")
	}
}

func TestPrefixOfNil(t *testing.T) {
	p, ctx := store.Prefix("p", nil), t.Context()
	_, get := p.Get(ctx, "k")
	_, add := p.Add(ctx, "k", 1)
	_, cas := p.CompareAndSet(ctx, "k", nil, nil)
	_, check := p.Check(ctx, "k")
	_, remove := p.Delete(ctx, "k")
	_, count := p.NumKeys(ctx)
	_, multi := p.MultiGet(ctx, "k")
	for i, err := range []error{
		p.Set(ctx, "k", nil), get, add, cas, check, p.Wait(ctx, "k"), remove, count, p.Close(),
		multi, p.Append(ctx, "k", []byte("x")), p.MultiSet(ctx, []string{"k"}, [][]byte{nil}), p.QueuePush(ctx, "k", nil),
	} {
		if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), "store argument cannot be None") {
			t.Errorf("operation %d: %v", i, err)
		}
	}
	if p.Underlying() != nil || store.UnderlyingNonPrefix(p) != nil {
		t.Error("there is a store below")
	}
	p.SetTimeout(time.Second)
}

func TestSupports(t *testing.T) {
	all, none := map[store.Feature]bool{}, map[store.Feature]bool{}
	for _, f := range store.Features() {
		all[f], none[f] = true, false
		if strings.HasPrefix(f.String(), "feature") {
			t.Errorf("%d has no name", f)
		}
	}
	noQueues := map[store.Feature]bool{}
	for f := range all {
		noQueues[f] = f != store.FeatureQueue
	}
	file, err := filestore.Open(t.Context(), filepath.Join(t.TempDir(), "store"), filestore.WithWorldSize(1))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, c := range map[string]struct {
		s    store.Store
		want map[store.Feature]bool
	}{
		"memory":  {store.NewMemory(), all},
		"file":    {file, noQueues},
		"minimal": {storetest.Minimal(store.NewMemory()), none},
		"denying": {denying{store.NewMemory()}, none},
		"nil":     {store.Prefix("p", nil), none},
	} {
		for depth, s := 0, c.s; depth < 3; depth, s = depth+1, store.Store(store.Prefix("p", s)) {
			got := map[store.Feature]bool{}
			for _, f := range store.Features() {
				got[f] = store.Supports(s, f)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s below %d prefixes (-want +got):\n%s", name, depth, diff)
			}
		}
	}
	if store.Supports(store.NewMemory(), 0) {
		t.Error("a feature that does not exist is supported")
	}
}

// denying has every method and cannot use one: a client whose server is too old.
type denying struct{ *store.Memory }

func (denying) Supports(store.Feature) bool { return false }

func (denying) Append(context.Context, string, []byte) error {
	return cohort.New("denying: append", cohort.NotSupported, "it said so")
}

func TestDeniedFeatureFallsBack(t *testing.T) {
	s, ctx := denying{store.NewMemory()}, t.Context()
	for _, view := range []store.Store{s, store.Prefix("p", s)} {
		if err := store.Append(ctx, view, "k", []byte("x")); err != nil {
			t.Error(err)
		}
	}
}

// A store that lacks even what a fallback needs says so, as PyTorch's "Not implemented.".
func TestOptionalMethodsFail(t *testing.T) {
	s, ctx := nothing{storetest.Minimal(store.NewMemory())}, t.Context()
	for _, view := range []store.Store{s, store.Prefix("p", s)} {
		for _, f := range store.Features() {
			if store.Supports(view, f) {
				t.Errorf("it claims to support %v", f)
			}
		}
		_, multi := store.MultiGet(ctx, view, "foo", "bar")
		for i, err := range []error{
			store.Append(ctx, view, "foo", []byte("bar")), multi,
			store.MultiSet(ctx, view, []string{"foo", "bar"}, [][]byte{[]byte("v"), []byte("v")}),
			store.QueuePush(ctx, view, "foo", nil),
		} {
			if !errors.Is(err, store.ErrNotSupported) {
				t.Errorf("operation %d: %v", i, err)
			}
		}
	}
}

type nothing struct{ store.Store }

var errNothing = cohort.New("nothing", cohort.NotSupported, "not implemented")

func (nothing) Set(context.Context, string, []byte) error   { return errNothing }
func (nothing) Get(context.Context, string) ([]byte, error) { return nil, errNothing }
func (nothing) CompareAndSet(context.Context, string, []byte, []byte) ([]byte, error) {
	return nil, errNothing
}

// recorder keeps what optional calls reach it: those of a prefix must arrive whole, with the prefix on their keys.
type recorder struct {
	store.Store
	calls []string
}

func (r *recorder) Append(_ context.Context, key string, value []byte) error {
	r.calls = append(r.calls, "append "+key+" "+string(value))
	return nil
}

func (r *recorder) MultiGet(_ context.Context, keys ...string) ([][]byte, error) {
	r.calls = append(r.calls, "multi-get "+strings.Join(keys, " "))
	return [][]byte{[]byte("x"), []byte("y")}, nil
}

func (r *recorder) MultiSet(_ context.Context, keys []string, values [][]byte) error {
	r.calls = append(r.calls, "multi-set "+strings.Join(keys, " ")+" "+string(values[0])+string(values[1]))
	return nil
}

func TestPrefixForwardsOptional(t *testing.T) {
	r := &recorder{Store: storetest.Minimal(store.NewMemory())}
	p, ctx := store.Prefix("p", r), t.Context()
	for f, want := range map[store.Feature]bool{
		store.FeatureAppend: true, store.FeatureMultiGet: true, store.FeatureMultiSet: true,
		store.FeatureQueue: false, store.FeatureListKeys: false,
	} {
		if got := store.Supports(p, f); got != want {
			t.Errorf("%v: %v", f, got)
		}
	}
	if err := store.Append(ctx, p, "foo", []byte("bar")); err != nil {
		t.Error(err)
	}
	got, err := store.MultiGet(ctx, p, "foo", "bar")
	if err != nil || len(got) != 2 || string(got[0]) != "x" || string(got[1]) != "y" {
		t.Errorf("multi-get: %q, %v", got, err)
	}
	if err := store.MultiSet(ctx, p, []string{"foo", "bar"}, [][]byte{[]byte("a"), []byte("b")}); err != nil {
		t.Error(err)
	}
	want := []string{"append p/foo bar", "multi-get p/foo p/bar", "multi-set p/foo p/bar ab"}
	if diff := cmp.Diff(want, r.calls); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The fallbacks do what the store's own operations do (PyTorch's test_extended_methods_fallbacks).
func TestExtendedMethodsFallbacks(t *testing.T) {
	below, ctx := storetest.Minimal(store.NewMemory()), t.Context()
	for _, s := range []store.Store{below, store.Prefix("p", below)} {
		if store.Supports(s, store.FeatureAppend) || store.Supports(s, store.FeatureMultiGet) || store.Supports(s, store.FeatureMultiSet) {
			t.Error("a minimal store claims what it has no method for")
		}
		for _, piece := range []string{"po", "tato"} { // the first makes the key
			if err := store.Append(ctx, s, "foo", []byte(piece)); err != nil {
				t.Error(err)
			}
		}
		if got, err := s.Get(ctx, "foo"); err != nil || string(got) != "potato" {
			t.Errorf("append: %q, %v", got, err)
		}
		if err := store.MultiSet(ctx, s, []string{"a", "b"}, [][]byte{[]byte("c"), []byte("d")}); err != nil {
			t.Error(err)
		}
		got, err := store.MultiGet(ctx, s, "a", "b", "foo")
		if want := [][]byte{[]byte("c"), []byte("d"), []byte("potato")}; err != nil || !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("multi-get: %q, %v; want %q", got, err, want)
		}
	}
}
