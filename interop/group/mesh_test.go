// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// meshStep makes a mesh of the sizes in Ranks, with dimensions a, b and so on, and says where this rank is.
func meshStep(ctx context.Context, g *group.Group, groups map[string]*group.Group, s step) (string, error) {
	var axes []group.Axis
	for i, n := range s.Ranks {
		axes = append(axes, group.Axis{Name: string(rune('a' + i)), Size: n})
	}
	m, err := g.NewMesh(ctx, axes)
	if err != nil {
		return "", err
	}
	for _, a := range axes {
		if groups[s.Name+a.Name], err = m.Group(a.Name); err != nil {
			return "", err
		}
	}
	return strings.ReplaceAll(fmt.Sprint(m.Coordinates()), " ", ", "), nil
}

// TestMesh makes device meshes with PyTorch ranks, whose versions make the groups in different orders.
func TestMesh(t *testing.T) {
	test := func(t *testing.T, tr *torchtest.Torch) {
		for _, sizes := range [][]int{{4}, {2, 2}, {4, 1}, {2, 1, 2}, {2, 2, 2}} {
			size := 1
			for _, n := range sizes {
				size *= n
			}
			plan := []step{{Op: "mesh", Name: "m", Ranks: sizes}}
			for i := range sizes {
				plan = append(plan, step{Op: "all_reduce", N: 3, DType: "float32", Group: "m" + string(rune('a'+i))})
			}
			plan = append(plan, step{Op: "new_group", Name: "later", Ranks: []int{0, 3}},
				step{Op: "all_gather", N: 3, DType: "float32", Group: "later"})
			if tr == torchtest.Newest {
				plan = append(plan, step{Op: "new_group", Name: "order", Ranks: []int{3, 0, 2}, Order: true},
					step{Op: "all_gather", N: 3, DType: "float32", Group: "order"},
					step{Op: "broadcast", N: 3, DType: "float32", Group: "order", Ranks: []int{3, 0, 2}})
			}
			want := world{size: size}.run(t, tr, plan)
			for _, goRanks := range [][]int{{0}, {1, 3}} {
				w := world{size: size, goRanks: goRanks}
				t.Run(fmt.Sprintf("%v,%v", sizes, w), func(t *testing.T) { compare(t, plan, want, w.run(t, tr, plan)) })
			}
		}
	}
	t.Run("torch-2.6", func(t *testing.T) {
		torchtest.V26.Need(t)
		test(t, torchtest.V26)
	})
	t.Run("torch-newest", func(t *testing.T) {
		torchtest.Newest.Need(t)
		test(t, torchtest.Newest)
	})
}

// sparsePlan has, unless it is to be short, every element type with every operator, and shapes with all that is
// special: no entries on some ranks or on all, no elements, four dimensions of both kinds and more, an index that
// occurs several times, large ones. A sum follows every step that PyTorch refuses, in whichever place: all ranks must
// be in step.
func sparsePlan(about torchtest.About, short bool) (plan []step) {
	add := func(s step) {
		s.Op, s.MayRefuse = "sparse", true
		plan = append(plan, s, step{Op: "all_reduce", N: 3, DType: "int64"})
	}
	for _, dt := range allDTypes {
		if !about.Has(torchtest.Halves) && (dt == "float16" || dt == "bfloat16") {
			continue // it cannot be told from outside that this build has no halves
		}
		add(step{N: 9, DType: dt, Shape: []int{20}, Dims: 1})
		add(step{N: 5, DType: dt, Shape: []int{6, 3}, Dims: 1})
		add(step{N: 5, DType: dt, Shape: []int{6, 3}, Dims: 1, Holes: true})
		add(step{N: 5, DType: dt, Shape: []int{6, 3}, Dims: 1, Tag: 1}) // only rank 0 has entries
		add(step{N: 0, DType: dt, Shape: []int{6, 3}, Dims: 2})
		reduces := allReduces[1:]
		if short {
			reduces = []string{"max", "avg"}
		}
		for _, reduce := range reduces {
			add(step{N: 4, DType: dt, Shape: []int{5}, Dims: 1, Reduce: reduce})
		}
	}
	larger := []string{"float32", "float64", "int32"}
	if short {
		larger = larger[:1]
	}
	for _, dt := range larger {
		for _, shape := range [][]int{{2, 3, 2, 3}, {2, 2, 2, 2, 2, 2, 2, 2}, {3, 2, 2, 2, 2}} {
			add(step{N: 7, DType: dt, Shape: shape, Dims: min(4, len(shape)-len(shape)/5*4)})
		}
		add(step{N: 3, DType: dt, Shape: []int{2, 2, 2, 2, 2}, Dims: 5})
		add(step{N: 3, DType: dt, Shape: []int{2, 2, 2, 2, 2, 2}, Dims: 1})
		add(step{N: 2, DType: dt, Shape: []int{3, 0}, Dims: 1})
		add(step{N: 2, DType: dt, Shape: []int{3, 4, 0, 2}, Dims: 2})
		add(step{N: 0, DType: dt, Shape: []int{0, 3}, Dims: 1})
		add(step{N: 60_000, DType: dt, Shape: []int{50_000, 5}, Dims: 1})
		add(step{N: 3000, DType: dt, Shape: []int{1 << 20, 1 << 20}, Dims: 2})
	}
	return plan
}

// TestSparse: sums of sparse tensors in worlds with Go ranks are those of a world of PyTorch ranks, bit by bit, and what
// PyTorch refuses is refused, in step; so it is with a check of operations beforehand.
func TestSparse(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, detail := range []bool{false, true} {
			t.Run(fmt.Sprintf("detail=%v", detail), func(t *testing.T) {
				w, plan := world{size: 3}, sparsePlan(tr.About(t), detail)
				if detail {
					w.env, w.options = detailEnv, []group.Option{group.WithDetail()}
				}
				want := w.run(t, tr, plan)
				refused := 0
				for _, got := range want[0] {
					if got == "refused" {
						refused++
					}
				}
				if refused < len(plan)/8 || refused > len(plan)/2 {
					t.Errorf("PyTorch refuses %d of %d", refused, len(plan)/2)
				}
				for _, ranks := range [][]int{{1}, {0, 2}} {
					w := w
					w.goRanks = ranks
					t.Run(w.String(), func(t *testing.T) {
						t.Parallel()
						compare(t, plan, want, w.run(t, tr, plan))
					})
				}
			})
		}
	})
}

// stayingSource is a PyTorch rank that stays in its group.
const stayingSource = `
import sys, datetime, torch, torch.distributed as dist
port = int(sys.argv[1])
limit = datetime.timedelta(seconds=60)
old = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
store = dist.TCPStore("127.0.0.1", port, 2, False, timeout=limit, wait_for_workers=False, **old)
dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=limit)
print("ready", flush=True)
sys.stdin.readline()
`

// TestSecondGroupUnderTheSameKeys: a Go rank makes a group a second time, and the PyTorch rank does not. It fails
// within its time, in New or, where the PyTorch rank still listens at its old address, in the first operation; and what
// to do about it was said.
func TestSecondGroupUnderTheSameKeys(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		server, err := tcpstore.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
		client, err := tcpstore.Dial(ctx, server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		other := tr.Start(t, torchtest.Script{Name: "rank1.py", Source: stayingSource, Args: []string{strconv.Itoa(server.Port())}})
		var said bytes.Buffer
		join := func(limit time.Duration) (*group.Group, error) {
			return group.New(ctx, client, 0, 2, group.WithBareStore(), group.WithConnectTimeout(limit),
				group.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
		}
		first, err := join(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		other.Expect(t, "ready")
		_ = first.Close()
		if strings.Contains(said.String(), "prefix of its own") {
			t.Errorf("the first group: %s", said.String())
		}
		const words = "WithStorePrefix"
		second, err := join(3 * time.Second)
		if err == nil {
			err = group.AllReduceSlice(ctx, second, []float32{1}, group.Sum, group.WithTimeout(3*time.Second))
			_ = second.Close()
		} else if !strings.Contains(err.Error(), words) {
			t.Errorf("the error does not say what to do: %v", err)
		}
		if code := cohort.CodeOf(err); code != cohort.PeerLost && code != cohort.DeadlineExceeded {
			t.Errorf("the second group: %v", err)
		}
		if !strings.Contains(said.String(), words) {
			t.Errorf("the log does not say what to do: %s", said.String())
		}
		other.Send(t, "")
	})
}
