// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package filestore_test has Go and real PyTorch, 1.13 and 2.6, use one file store at the same time.
package filestore_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
)

//go:embed agent.py
var agentSource string

// agent is a PyTorch process with a FileStore.
type agent struct {
	t    *testing.T
	proc *torchtest.Proc
}

const noWorld = -1

func start(t *testing.T, tr *torchtest.Torch, path string, world int) *agent {
	t.Helper()
	size := "-"
	if world != noWorld {
		size = strconv.Itoa(world)
	}
	p := tr.Start(t, torchtest.Script{Name: "agent.py", Source: agentSource, Args: []string{path, size}})
	p.Expect(t, "ready")
	return &agent{t: t, proc: p}
}

// send gives a command without waiting for its answer.
func (a *agent) send(command ...any) {
	a.t.Helper()
	line, err := json.Marshal(command)
	if err != nil {
		a.t.Fatal(err)
	}
	a.proc.Send(a.t, string(line))
}

func (a *agent) answer() (any, string) {
	a.t.Helper()
	var reply struct {
		Result any
		Error  string
	}
	if err := json.Unmarshal([]byte(a.proc.Line(a.t)), &reply); err != nil {
		a.t.Fatal(err)
	}
	return reply.Result, reply.Error
}

// want runs a command that must give the result.
func (a *agent) want(result any, command ...any) {
	a.t.Helper()
	a.send(command...)
	got, problem := a.answer()
	if n, ok := result.(int); ok {
		result = float64(n) // as JSON has it
	}
	if problem != "" || got != result {
		a.t.Fatalf("torch %s: %v = %#v %s; want %#v", a.proc.Torch.Name, command, got, problem, result)
	}
}

func open(t *testing.T, path string, opts ...filestore.Option) *filestore.Store {
	t.Helper()
	s, err := filestore.Open(t.Context(), path, append(opts, filestore.WithTimeout(30*time.Second))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// shared returns the path of a file for Go and for the Python of tr.
func shared(t *testing.T, tr *torchtest.Torch) (host, inside string) {
	t.Helper()
	host, inside = tr.TempDir(t)
	return filepath.Join(host, "store"), filepath.Join(inside, "store")
}

func wantGet(t *testing.T, s store.Store, key, want string) {
	t.Helper()
	if got, err := s.Get(t.Context(), key); err != nil || string(got) != want {
		t.Fatalf("go: get %q = %q, %v; want %q", key, got, err, want)
	}
}

func TestOperations(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		for _, goFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("go-first-%v", goFirst), func(t *testing.T) {
				host, inside := shared(t, tr)
				var s *filestore.Store
				if goFirst {
					s = open(t, host)
				}
				py := start(t, tr, inside, noWorld)
				if !goFirst {
					s = open(t, host)
				}
				ctx := t.Context()

				if err := s.Set(ctx, "from go", []byte("g\x00\xff")); err != nil {
					t.Fatal(err)
				}
				py.want("g\x00ÿ", "get", "from go")
				py.want(nil, "set", "from python", "p")
				wantGet(t, s, "from python", "p")
				py.want(nil, "set", "empty", "")
				wantGet(t, s, "empty", "")

				py.want(3, "add", "n", 3)
				if n, err := s.Add(ctx, "n", 4); n != 7 || err != nil {
					t.Fatalf("add: %d, %v", n, err)
				}
				py.want(-1, "add", "n", -8)
				wantGet(t, s, "n", "-1")
				py.want(9, "add", "empty", 9)
				_ = s.Set(ctx, "empty go", nil)
				py.want(2, "add", "empty go", 2)

				py.want("no", "compare_set", "c", "no", "yes")
				py.want("yes", "compare_set", "c", "", "yes")
				if v, err := s.CompareAndSet(ctx, "c", []byte("yes"), []byte("again")); string(v) != "again" || err != nil {
					t.Fatalf("compare-and-set: %q, %v", v, err)
				}
				py.want("again", "compare_set", "c", "yes", "never")

				py.want(true, "delete_key", "c")
				if ok, err := s.Check(ctx, "c"); ok || err != nil {
					t.Fatalf("check: %v, %v", ok, err)
				}
				if ok, err := s.Delete(ctx, "from python"); !ok || err != nil {
					t.Fatalf("delete: %v, %v", ok, err)
				}
				py.want(true, "delete_key", "from python")

				if err := s.Append(ctx, "log", []byte("po")); err != nil {
					t.Fatal(err)
				}
				if err := s.MultiSet(ctx, []string{"m1", "m2"}, [][]byte{[]byte("1"), []byte("2")}); err != nil {
					t.Fatal(err)
				}
				py.want("po", "get", "log")
				py.want("2", "get", "m2")
				_ = store.Prefix("outer", store.Prefix("inner", s)).Set(ctx, "k", []byte("v"))
				py.want("v", "get", "inner/outer/k")
				py.want(nil, "prefix", "p", "set", "k", "w")
				wantGet(t, store.Prefix("p", s), "k", "w")

				// Keys: from go, empty, empty go, n, log, m1, m2, inner/outer/k, p/k and refcount/.
				n, err := s.NumKeys(ctx)
				if n != 10 || err != nil {
					t.Fatalf("%d keys, %v", n, err)
				}
				py.want(n, "num_keys")
			})
		}
	})
}

func TestWaits(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		host, inside := shared(t, tr)
		s := open(t, host)
		py := start(t, tr, inside, noWorld)
		ctx := t.Context()
		py.send("wait", "a", "b")
		_ = s.Set(ctx, "a", nil)
		if _, err := s.Add(ctx, "b", 1); err != nil {
			t.Fatal(err)
		}
		if _, problem := py.answer(); problem != "" {
			t.Fatal(problem)
		}
		py.send("get", "late")
		if _, err := s.CompareAndSet(ctx, "late", nil, []byte("stored")); err != nil {
			t.Fatal(err)
		}
		if got, problem := py.answer(); got != "stored" {
			t.Fatal(got, problem)
		}
		done := make(chan error, 1)
		go func() { done <- s.Wait(ctx, "x", "y") }()
		py.want(nil, "set", "x", "1")
		py.want(1, "add", "y", 1)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := s.Wait(short, "never"); !errors.Is(err, store.ErrTimeout) {
			t.Fatal(err)
		}
		py.send("wait_ms", 10, "never")
		if _, problem := py.answer(); !strings.Contains(strings.ToLower(problem), "timeout") {
			t.Fatalf("python: %q", problem)
		}
	})
}

// TestAllVersions has a file in use by all PyTorch versions, two processes of each, and by Go at the same time.
func TestAllVersions(t *testing.T) {
	torchtest.V113.Need(t)
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	host, inside := shared(t, torchtest.V26)
	linked, insideNewest := shared(t, torchtest.Newest)
	s, ctx := open(t, host), t.Context()
	if err := os.Link(host, linked); err != nil { // each has a separate root
		t.Fatal(err)
	}
	var agents []*agent
	for range 2 {
		agents = append(agents, start(t, torchtest.V113, host, noWorld), // on the host, it reaches into the other's root
			start(t, torchtest.V26, inside, noWorld), start(t, torchtest.Newest, insideNewest, noWorld))
	}
	for i, a := range agents {
		key := "of " + strconv.Itoa(i)
		a.want(nil, "set", key, strconv.Itoa(i))
		wantGet(t, s, key, strconv.Itoa(i))
		for _, b := range agents {
			b.want(strconv.Itoa(i), "get", key)
		}
		agents[(i+1)%len(agents)].want(true, "delete_key", key)
		if has, err := s.Check(ctx, key); has || err != nil {
			t.Fatalf("%q is there: %v, %v", key, has, err)
		}
	}
	n, err := s.NumKeys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range agents {
		a.want(n, "num_keys")
	}

	const each = 100
	for _, a := range agents {
		a.send("adds", "sum", each)
	}
	addEach(t, s, each)
	for _, a := range agents {
		if _, problem := a.answer(); problem != "" {
			t.Fatal(problem)
		}
	}
	want := (len(agents) + 2) * each
	for _, a := range agents {
		a.want(want, "add", "sum", 0)
	}
	wantGet(t, s, "sum", strconv.Itoa(want))
}

// addEach adds n times in each of two goroutines.
func addEach(t *testing.T, s store.Store, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range n {
				if _, err := s.Add(t.Context(), "sum", 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestConcurrentAdds(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		host, inside := shared(t, tr)
		s, second := open(t, host), open(t, host)
		agents := []*agent{start(t, tr, inside, noWorld), start(t, tr, inside, noWorld)}
		const each = 200
		for _, a := range agents {
			a.send("adds", "sum", each)
		}
		addEach(t, s, each)
		addEach(t, second, each)
		for _, a := range agents {
			if _, problem := a.answer(); problem != "" {
				t.Fatal(problem)
			}
		}
		const want = 6 * each
		agents[0].want(want, "add", "sum", 0)
		wantGet(t, s, "sum", strconv.Itoa(want))
	})
}

// TestFileBytes compares what both sides write, byte for byte, for the same operations.
func TestFileBytes(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		pyHost, pyInside := shared(t, tr)
		py := start(t, tr, pyInside, 2)
		py.want(nil, "set", "a", "xy")
		py.want(5, "add", "n", 5)
		py.want("d", "compare_set", "c", "", "d")
		py.want(true, "delete_key", "a")
		py.want(nil, "set", "", "")
		py.want(nil, "close")

		goHost := filepath.Join(t.TempDir(), "store")
		s := open(t, goHost, filestore.WithWorldSize(2))
		ctx := t.Context()
		_ = s.Set(ctx, "a", []byte("xy"))
		_, _ = s.Add(ctx, "n", 5)
		_, _ = s.CompareAndSet(ctx, "c", nil, []byte("d"))
		_, _ = s.Delete(ctx, "a")
		_ = s.Set(ctx, "", nil)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		theirs, err := os.ReadFile(pyHost)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := os.ReadFile(goHost)
		if err != nil {
			t.Fatal(err)
		}
		if tr.Name == "1.13" { // which keeps no count of references
			for _, count := range []string{"1", "0"} {
				ours = bytes.Replace(ours, []byte("\x09\x00\x00\x00refcount/\x01\x00\x00\x00"+count), nil, 1)
			}
		}
		if !bytes.Equal(ours, theirs) {
			t.Fatalf("go     %q\npython %q", ours, theirs)
		}
	})
}

func TestReferenceCount(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		t.Run("go-last", func(t *testing.T) {
			host, inside := shared(t, tr)
			s := open(t, host, filestore.WithWorldSize(2))
			py := start(t, tr, inside, 2)
			py.want(nil, "close")
			if !exists(host) {
				t.Fatal("removed under Go's eyes")
			}
			if err := s.Close(); err != nil || exists(host) {
				t.Fatalf("close: %v; the file exists: %v", err, exists(host))
			}
		})
		t.Run("python-last", func(t *testing.T) {
			host, inside := shared(t, tr)
			s := open(t, host, filestore.WithWorldSize(2))
			py := start(t, tr, inside, 2)
			if err := s.Close(); err != nil || !exists(host) {
				t.Fatalf("close: %v; the file exists: %v", err, exists(host))
			}
			py.want(nil, "close")
			if exists(host) {
				t.Fatal("Python, the last, did not remove the file")
			}
		})
		t.Run("no-world-size", func(t *testing.T) {
			host, inside := shared(t, tr)
			s := open(t, host)
			py := start(t, tr, inside, noWorld)
			py.want(nil, "close")
			if err := s.Close(); err != nil || !exists(host) {
				t.Fatalf("close: %v; the file exists: %v", err, exists(host))
			}
		})
		t.Run("more-handles-than-world", func(t *testing.T) {
			if tr.Name == "1.13" {
				// 1.13 removes the file at exactly its world size, also while others use it: Go reports that its store was removed.
				host, inside := shared(t, tr)
				s := open(t, host, filestore.WithWorldSize(1))
				py := start(t, tr, inside, 1)
				py.want(nil, "close")
				if exists(host) {
					t.Fatal("1.13 has learned to count references")
				}
				if err := s.Set(t.Context(), "k", []byte("v")); !errors.Is(err, cohort.Replaced) {
					t.Fatalf("set in a store that was removed: %v", err)
				}
				if err := s.Close(); err != nil || exists(host) {
					t.Fatalf("close: %v; the file exists: %v", err, exists(host))
				}
				return
			}
			host, inside := shared(t, tr)
			s := open(t, host, filestore.WithWorldSize(1))
			py := start(t, tr, inside, 1)
			py.want(nil, "close")
			if !exists(host) {
				t.Fatal("removed under Go's eyes")
			}
			if err := s.Close(); err != nil || exists(host) {
				t.Fatalf("close: %v; the file exists: %v", err, exists(host))
			}
		})
	})
}

// TestProcessGroup starts gloo worlds whose ranks meet in a file that Go has opened and reads.
func TestProcessGroup(t *testing.T) {
	const source = `
import sys, torch
import torch.distributed as dist
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
x = torch.ones(3) * (rank + 1)
dist.all_reduce(x)
print(x.tolist(), flush=True)
input()
dist.destroy_process_group()
`
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		t.Helper()
		host, inside := shared(t, tr)
		s := open(t, host)
		var procs []*torchtest.Proc
		for rank := range 2 {
			procs = append(procs, tr.Start(t, torchtest.Script{Source: source, Args: []string{inside, strconv.Itoa(rank)}}))
		}
		for _, p := range procs {
			p.Expect(t, "[3.0, 3.0, 3.0]")
		}
		keys, err := s.ListKeys(t.Context())
		if err != nil || len(keys) < 2 {
			t.Fatalf("keys %q, %v", keys, err)
		}
		for _, p := range procs {
			p.Send(t, "")
			p.MustExit(t, time.Minute)
		}
	})
}
