// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/group/gloo/torchcaps"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

//go:embed fsdp.py
var fsdpSource string

// sharded is a linear layer of which each rank has some rows, as FSDP2 cuts it: as many as the first rank's on every rank,
// the last ones filled up with zeros.
type sharded struct {
	ins, outs, rows int
	shard           []float32 // of the weight, then of the bias
}

// fsdpShape is a model of two layers and its input.
type fsdpShape struct{ size, ins, outsA, outsB, batch int }

func (s fsdpShape) args(steps int) (args []string) {
	for _, n := range []int{steps, s.ins, s.outsA, s.outsB, s.batch} {
		args = append(args, strconv.Itoa(n))
	}
	return args
}

// newSharded cuts the k-th and the (k+1)-th parameter of fsdp.py.
func newSharded(k, ins, outs, rank, size int) *sharded {
	l := &sharded{ins: ins, outs: outs, rows: (outs + size - 1) / size}
	l.shard = make([]float32, l.rows*(l.ins+1))
	value := func(i, k int) float32 { return float32((i*7+3*k)%11-5) / 8 }
	for i := range l.own(rank) {
		row := rank*l.rows + i
		for j := range l.ins {
			l.shard[i*l.ins+j] = value(row*l.ins+j, k)
		}
		l.shard[l.rows*l.ins+i] = value(row, k+1)
	}
	return l
}

// own is the number of rows that a rank really has.
func (l *sharded) own(rank int) int { return min(max(l.outs-rank*l.rows, 0), l.rows) }

// parts returns the rows of a rank without the zeros: weight and bias.
func (l *sharded) parts(all []float32, rank int) (weight, bias []float32) {
	return all[:l.own(rank)*l.ins], all[l.rows*l.ins:][:l.own(rank)]
}

// gather returns the whole layer.
func (l *sharded) gather(ctx context.Context, g *group.Group) (weight, bias []float32, err error) {
	all, err := group.AllGatherSlice(ctx, g, l.shard)
	if err != nil {
		return nil, nil, err
	}
	for r := range g.Size() {
		w, b := l.parts(all[r*len(l.shard):][:len(l.shard)], r)
		weight, bias = append(weight, w...), append(bias, b...)
	}
	return weight, bias, nil
}

// step reduces the gradient of a sum of outputs over the rows of x and takes it off this rank's part.
func (l *sharded) step(ctx context.Context, g *group.Group, x []float32) error {
	grad := make([]float32, 0, len(l.shard)*g.Size())
	for r := range g.Size() {
		part := make([]float32, len(l.shard))
		weight, bias := l.parts(part, r)
		for i := range x {
			for row := range l.own(r) {
				weight[row*l.ins+i%l.ins] += x[i]
			}
		}
		for row := range bias {
			bias[row] = float32(len(x) / l.ins)
		}
		grad = append(grad, part...)
	}
	mean, err := group.ReduceScatterSlice(ctx, g, grad, group.Avg)
	if err != nil {
		return err
	}
	for i := range l.shard {
		l.shard[i] -= 0.125 * mean[i]
	}
	return nil
}

func digest32(lists ...[]float32) string {
	h := sha256.New()
	for _, v := range slices.Concat(lists...) {
		_ = binary.Write(h, binary.LittleEndian, math.Float32bits(v))
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// fsdpRank is what fsdp.py does, with the collectives in FSDP2's order.
func fsdpRank(ctx context.Context, g *group.Group, s fsdpShape, steps int) (log []string, err error) {
	a, b := newSharded(0, s.ins, s.outsA, int(g.Rank()), g.Size()), newSharded(2, s.ins, s.outsB, int(g.Rank()), g.Size())
	for step := range steps {
		x := make([]float32, s.batch*s.ins)
		for i := range x {
			x[i] = float32((i*5+3*int(g.Rank())+step)%9-4) / 4
		}
		for _, l := range []*sharded{a, b, b, a} { // forward, then backward, which gathers again what the forward pass gave back
			weight, bias, err := l.gather(ctx, g)
			if err != nil {
				return log, err
			}
			log = append(log, digest32(weight, bias))
		}
		log = log[:len(log)-2]               // the script sees the forward pass only
		for _, l := range []*sharded{a, b} { // as the backward pass ends them: both see the input
			if err := l.step(ctx, g, x); err != nil {
				return log, err
			}
		}
		aw, ab := a.parts(a.shard, int(g.Rank()))
		bw, bb := b.parts(b.shard, int(g.Rank()))
		log = append(log, digest32(aw, ab, bw, bb))
	}
	return log, g.AllReduce(ctx, tensor.Must(tensor.From([]float32{0}, 1)), group.Sum).Wait(ctx)
}

// TestFSDP2: Go ranks gather and reduce as ranks of a fully sharded model, and every rank has the bits that it has in a world of PyTorch
// ranks. Seeds choose the shapes, so that shards are uneven or empty. gloo has the mean that FSDP2 asks for since 2.8, with the operator
// honoured since 2.9. More of them:
//
//	COHORT_INTEROP=auto go test ./interop/group -run FSDP2 -worlds 100 -world 1000
func TestFSDP2(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if !tr.About(t).Since(2, 9) {
			tr.NotApplicable(t, "has no mean in reduce_scatter")
		}
		type trial struct {
			fsdpShape
			goRanks [][]int
		}
		trials := []trial{{fsdpShape{size: 3, ins: 4, outsA: 5, outsB: 2, batch: 3}, [][]int{{0}, {2}}}}
		for i := range *fuzzSeeds - 1 {
			f := rand.New(rand.NewPCG(*fuzzFirst+uint64(i), 19))
			size := 2 + f.IntN(4)
			ranks := f.Perm(size)[:1+f.IntN(size-1)]
			slices.Sort(ranks)
			trials = append(trials, trial{fsdpShape{size, 1 + f.IntN(20), 1 + f.IntN(30), 1 + f.IntN(6), 1 + f.IntN(5)}, [][]int{ranks}})
		}
		for _, s := range trials {
			t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) {
				t.Parallel()
				want := runFSDP(t, tr, s.fsdpShape, world{size: s.size})
				if slices.Equal(want[0], want[1]) {
					t.Errorf("ranks have the same parts: %v", want[0])
				}
				for _, ranks := range s.goRanks {
					for rank, log := range runFSDP(t, tr, s.fsdpShape, world{size: s.size, goRanks: ranks}) {
						if len(log) != 3*fsdpSteps || !slices.Equal(log, want[rank]) {
							t.Errorf("Go ranks %v: rank %d: %v, an all-PyTorch world gives %v", ranks, rank, log, want[rank])
						}
					}
				}
			})
		}
	})
}

const fsdpSteps = 3

// runFSDP trains in a world and returns what all ranks have noted.
func runFSDP(t *testing.T, tr *torchtest.Torch, s fsdpShape, w world) [][]string {
	t.Helper()
	w.shared = slices.Concat(torchtest.Optimizers, []string{"torch.distributed.fsdp"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	port := testkit.FreePort(t)
	procs := w.startTorch(t, tr, port, fsdpSource, s.args(fsdpSteps)...)
	logs := make([][]string, s.size)
	groups := w.joinGo(ctx, t, port)
	if err := w.eachGo(func(r int) (err error) {
		logs[r], err = fsdpRank(ctx, groups[r], s, fsdpSteps)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for r, p := range procs {
		if line := p.Line(t); json.Unmarshal([]byte(line), &logs[r]) != nil {
			t.Fatalf("rank %d printed %q", r, line)
		}
		p.MustExit(t, time.Minute)
	}
	return logs
}

// TestFSDP2VersionUnknown: a Go rank that was not given the version of the PyTorch ranks takes part until the first mean,
// refuses that with an error that names the option and the variable, and makes no rank wait. The variable is enough.
func TestFSDP2VersionUnknown(t *testing.T) {
	tr := torchtest.Newest
	tr.Need(t)
	s := fsdpShape{size: 3, ins: 4, outsA: 5, outsB: 2, batch: 3}
	for _, goRank := range []int{0, 2} { // rank 0 hosts the store
		t.Run(fmt.Sprint("go=", goRank), func(t *testing.T) {
			w := world{
				size: s.size, goRanks: []int{goRank}, unversioned: true,
				shared: slices.Concat(torchtest.Optimizers, []string{"torch.distributed.fsdp"}),
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			port := testkit.FreePort(t)
			procs := w.startTorch(t, tr, port, fsdpSource, s.args(fsdpSteps)...)
			log, err := fsdpRank(ctx, w.joinGo(ctx, t, port)[goRank], s, fsdpSteps)
			if !errors.Is(err, cohort.NotSupported) || !strings.Contains(err.Error(), torchcaps.Option) ||
				!strings.Contains(err.Error(), torchcaps.Variable) || len(log) != 2 {
				t.Errorf("after %d gathered layers: %v", len(log), err)
			}
			for r, p := range procs {
				if code, failed := p.Wait(ctx); failed != nil || code == 0 {
					t.Errorf("PyTorch rank %d: exit code %d, %v", r, code, failed)
				}
			}
			t.Log(err)
			t.Setenv(torchcaps.Variable, tr.About(t).Version)
			for r, log := range runFSDP(t, tr, s, w) {
				if len(log) != 3*fsdpSteps {
					t.Errorf("with the variable rank %d has %v", r, log)
				}
			}
		})
	}
}

// TestFSDP2StoppedRank: PyTorch ranks train with FSDP2 over a store that a Go process hosts. Each rank is stopped for a
// while, one after the other, and all have the results that they have without that.
func TestFSDP2StoppedRank(t *testing.T) {
	const steps = 60
	shape := fsdpShape{size: 3, ins: 4, outsA: 5, outsB: 2, batch: 3}
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		if !tr.About(t).Since(2, 9) {
			tr.NotApplicable(t, "has no FSDP2 for processors")
		}
		t.Parallel()
		train := func(stop bool) [][]string {
			server, err := tcpstore.Listen("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Close() }()
			w := world{size: shape.size, shared: slices.Concat(torchtest.Optimizers, []string{"torch.distributed.fsdp"})}
			procs, logs := w.startTorch(t, tr, server.Port(), fsdpSource, append(shape.args(steps), "hosted")...),
				make([][]string, shape.size)
			for r := range shape.size {
				procs[r].Expect(t, "begun")
				if stop {
					procs[r].Signal(syscall.SIGSTOP)
					time.Sleep(300 * time.Millisecond) // the others wait for it
					procs[r].Signal(syscall.SIGCONT)
				}
			}
			for r, p := range procs {
				if line := p.Line(t); json.Unmarshal([]byte(line), &logs[r]) != nil {
					t.Fatalf("rank %d printed %q", r, line)
				}
				p.MustExit(t, time.Minute)
			}
			return logs
		}
		want, got := train(false), train(true)
		for r := range want {
			if len(want[r]) != 3*steps || !slices.Equal(got[r], want[r]) {
				t.Errorf("rank %d: %d digests, which are others than the %d of a world that runs through", r, len(got[r]), len(want[r]))
			}
		}
	})
}
