// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed split.py
var splitSource string

// useGroup does what use in split.py does.
func useGroup(ctx context.Context, g *group.Group, world cohort.Rank) (string, error) {
	if g == nil {
		return "-", nil
	}
	power := float32(1)
	for range world {
		power *= 10
	}
	one := func(v float32) *tensor.Tensor { return tensor.Must(tensor.From([]float32{v}, 1)) }
	sum, own, root := one(power), one(float32(world)), one(float32(world))
	all := make([]*tensor.Tensor, g.Size())
	for i := range all {
		all[i] = one(0)
	}
	for _, w := range []*group.Work{g.AllReduce(ctx, sum, group.Sum), g.AllGather(ctx, all, own), g.Broadcast(ctx, root, 0)} {
		if err := w.Wait(ctx); err != nil {
			return "", err
		}
	}
	members := make([]string, len(all))
	for i, t := range all {
		members[i] = strconv.Itoa(int(first(t)))
	}
	return fmt.Sprintf("%d of %d: %d [%s] %d", g.Rank(), g.Size(), int(first(sum)), strings.Join(members, ", "), int(first(root))), nil
}

func first(t *tensor.Tensor) float32 {
	v, err := tensor.Copy[float32](t)
	if err != nil {
		panic(err)
	}
	return v[0]
}

// splitAndMerge does what split.py does, on a Go rank.
func splitAndMerge(ctx context.Context, world *group.Group, port int) (out []string, err error) {
	me := world.Rank()
	note := func(g *group.Group, made error) *group.Group {
		if err == nil {
			err = made
		}
		if err == nil {
			var text string
			text, err = useGroup(ctx, g, me)
			out = append(out, text)
		}
		return g
	}
	// g may be nil: a rank that is not a member splits nothing.
	split := func(g *group.Group, lists [][]cohort.Rank, opts ...group.Option) *group.Group {
		if g == nil {
			return note(nil, nil)
		}
		return note(g.Split(ctx, lists, opts...))
	}
	half := split(world, [][]cohort.Rank{{2, 0}, {1, 3}})
	if errors.Is(err, cohort.NotSupported) {
		out, err = []string{"refused"}, nil
		note(world, nil)
		return out, err
	}
	split(half, [][]cohort.Rank{{1, 0}})
	split(half, [][]cohort.Rank{{1}, {0}}, group.WithName("named"))
	sub, made := world.NewGroup(ctx, []cohort.Rank{0, 1, 2})
	err = errors.Join(err, made)
	split(sub, [][]cohort.Rank{{2, 0, 1}})
	split(world, [][]cohort.Rank{{3, 2, 1}})
	note(world.NewGroup(ctx, nil, group.WithLocalSync()))
	note(world.NewGroup(ctx, []cohort.Rank{1, 3}))
	if err != nil {
		return out, err
	}
	client, err := tcpstore.Dial(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return out, err
	}
	defer func() { _ = client.Close() }()
	merged, err := world.Merge(ctx, store.Prefix("merge", client), world.Size())
	if err != nil {
		return out, err
	}
	defer func() { _ = merged.Close() }()
	power := float32(1)
	for range me {
		power *= 10
	}
	total := tensor.Must(tensor.From([]float32{power}, 1))
	if err = merged.AllReduce(ctx, total, group.Sum).Wait(ctx); err != nil {
		return out, err
	}
	out = append(out, fmt.Sprintf("%d: %d", merged.Size(), int(first(total))))
	everyone := make([]cohort.Rank, merged.Size())
	for i := range everyone {
		everyone[i] = cohort.Rank(i)
	}
	whole, err := merged.Split(ctx, [][]cohort.Rank{everyone})
	if err != nil {
		return out, err
	}
	text, err := useGroup(ctx, whole, me)
	if err != nil {
		return out, err
	}
	out = append(out, text[1:min(7, len(text))])
	// Rank 0 hosts the store: no rank leaves before all are here.
	note(world, nil)
	return out, err
}

// TestSplitAndMerge splits and merges groups of Go and PyTorch ranks: nested, named, in any order, off sub-groups, and with plain and
// hashed groups in between, whose names must not be moved by it.
func TestSplitAndMerge(t *testing.T) {
	run := func(t *testing.T, tr *torchtest.Torch, w world) [][]string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		port := testkit.FreePort(t)
		procs := w.startTorch(t, tr, port, splitSource)
		results := make([][]string, w.size)
		groups := w.joinGo(ctx, t, port)
		err := w.eachGo(func(r int) (err error) {
			results[r], err = splitAndMerge(ctx, groups[r], port)
			return err
		})
		if err != nil {
			for _, p := range procs {
				t.Log(p.Stderr())
			}
			t.Fatal(err)
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
	t.Run("newest", func(t *testing.T) {
		torchtest.Newest.Need(t)
		want := run(t, torchtest.Newest, world{size: 4})
		for r, words := range [][]string{
			{"1 of 2: 101 [2, 0] 2", "0 of 2: 101 [0, 2] 0", "0 of 1: 1 [0] 0", "1 of 3: 111 [2, 0, 1] 2", "-"},
			{"0 of 2: 1010 [1, 3] 1", "1 of 2: 1010 [3, 1] 3", "0 of 1: 10 [1] 1", "2 of 3: 111 [2, 0, 1] 2", "2 of 3: 1110 [3, 2, 1] 3"},
		} {
			if !slices.Equal(want[r][:len(words)], words) {
				t.Fatalf("PyTorch alone: rank %d has %q, want %q", r, want[r], words)
			}
		}
		for _, w := range []world{
			{size: 4, goRanks: []int{0}},
			{size: 4, goRanks: []int{2}},
			{size: 4, goRanks: []int{1, 3}},
			{size: 4, goRanks: []int{0, 1, 2}},
			{
				size: 4, goRanks: []int{3}, env: map[string]string{"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
				options: []group.Option{group.WithDetail()},
			},
		} {
			t.Run(fmt.Sprint(w, len(w.env)), func(t *testing.T) {
				got := run(t, torchtest.Newest, w)
				for r := range got {
					if !slices.Equal(got[r], want[r]) {
						t.Errorf("rank %d: got\n%q, PyTorch ranks alone\n%q", r, got[r], want[r])
					}
				}
			})
		}
	})
	// Older ones cannot, and say so: the Go rank refuses it too, and the group goes on.
	t.Run("torch-2.6", func(t *testing.T) {
		torchtest.V26.Need(t)
		for r, words := range run(t, torchtest.V26, world{size: 4, goRanks: []int{1}}) {
			if want := fmt.Sprintf("%d of 4: 1111 [0, 1, 2, 3] 0", r); !slices.Equal(words, []string{"refused", want}) {
				t.Errorf("rank %d: %q", r, words)
			}
		}
	})
}
