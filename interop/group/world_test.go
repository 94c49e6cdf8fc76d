// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package group_test runs Go ranks and real PyTorch ranks in one process group.
package group_test

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(child(spec))
	}
	goleak.VerifyTestMain(m, torchtest.LastingGoroutines()...)
}

//go:embed rank.py
var rankSource string

// versions are those of the PyTorch ranks of a world, by the port of its store: Go ranks are told, since it is not on the wire.
var versions sync.Map

// world says which ranks are Go's.
type world struct {
	size        int
	goRanks     []int
	env         map[string]string
	options     []group.Option
	unversioned bool                     // the Go ranks find out themselves what the PyTorch ranks are
	torches     map[int]*torchtest.Torch // of PyTorch ranks that are of another version than the others
	shared      []string                 // modules that the scripts import
}

func (w world) String() string {
	text := fmt.Appendf(nil, "ranks=%d,go=%v", w.size, w.goRanks)
	for _, r := range slices.Sorted(maps.Keys(w.torches)) {
		text = fmt.Appendf(text, ",%d=%s", r, w.torches[r].Name)
	}
	return string(text)
}

func (w world) isGo(r int) bool { return slices.Contains(w.goRanks, r) }

// startTorch starts the PyTorch ranks of a world with a script that takes rank, size, port and the given arguments.
func (w world) startTorch(t testing.TB, tr *torchtest.Torch, port int, source string, args ...string) map[int]*torchtest.Proc {
	t.Helper()
	procs := map[int]*torchtest.Proc{}
	var all []string
	for r := range w.size {
		if !w.isGo(r) {
			its := cmp.Or(w.torches[r], tr)
			all = append(all, "torch-"+its.About(t).Version)
			procs[r] = its.Start(t, torchtest.Script{
				Name: fmt.Sprintf("rank%d.py", r), Source: source, Env: w.env, Shared: w.shared,
				Args: append([]string{strconv.Itoa(r), strconv.Itoa(w.size), strconv.Itoa(port)}, args...),
			})
		}
	}
	versions.Store(port, strings.Join(all, ","))
	return procs
}

// joinGo makes the Go ranks of a world. Rank 0 hosts the store.
func (w world) joinGo(ctx context.Context, t testing.TB, port int) map[int]*group.Group {
	t.Helper()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if w.isGo(0) {
		server, err := tcpstore.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
	}
	groups := map[int]*group.Group{}
	var mu sync.Mutex
	err := w.eachGo(func(r int) error {
		g, err := w.tryJoin(ctx, t, port, r)
		if err != nil {
			return err
		}
		mu.Lock()
		groups[r] = g
		mu.Unlock()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// tryJoin makes one Go rank.
func (w world) tryJoin(ctx context.Context, t testing.TB, port, r int) (*group.Group, error) {
	t.Helper()
	client, err := tcpstore.Dial(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = client.Close() })
	if _, err = client.JoinWorker(ctx); err != nil {
		return nil, err
	}
	options := w.options
	if v, ok := versions.Load(port); ok && !w.unversioned {
		options = append([]group.Option{group.WithPeers(group.Peers(fmt.Sprint(v)))}, options...)
	}
	g, err := group.New(ctx, client, cohort.Rank(r), w.size, options...)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = g.Close() })
	return g, nil
}

// eachGo runs f for every Go rank at once.
func (w world) eachGo(f func(r int) error) error {
	return testkit.SomeRanks(w.goRanks, f)
}

// run executes a plan in the world and returns the digests of all ranks.
func (w world) run(t *testing.T, tr *torchtest.Torch, plan []step) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	port := testkit.FreePort(t)
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	procs := w.startTorch(t, tr, port, rankSource, string(text))
	results := make([][]string, w.size)
	if len(w.goRanks) > 0 {
		groups := w.joinGo(ctx, t, port)
		err := w.eachGo(func(r int) error {
			var err error
			results[r], err = runPlan(ctx, groups[r], plan)
			if err != nil {
				return err
			}
			last := tensor.Must(tensor.From([]float32{0}, 1))
			return groups[r].AllReduce(ctx, last, group.Sum).Wait(ctx) // see the end of rank.py
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			_ = g.Close()
		}
	}
	for r, p := range procs {
		line := p.Line(t)
		if err := json.Unmarshal([]byte(line), &results[r]); err != nil {
			t.Fatalf("rank %d printed %q: %v", r, line, err)
		}
		p.MustExit(t, time.Minute)
	}
	return results
}
