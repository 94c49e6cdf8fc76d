// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ddp

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/tensor/tensorops"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

//go:embed models.py
var randomScript string

var (
	randoms    = flag.Int("ddp.models", 12, "how many models TestRandomModels trains per place of the Go rank")
	randomSeed = flag.Uint64("ddp.seed", 1, "the seed of TestRandomModels")
)

// spec describes a random model and how it is trained, as models.py reads it.
type spec struct {
	Seed    int         `json:"seed"`
	Width   int         `json:"width"`
	Parts   []specPart  `json:"parts"`
	Blocks  []specBlock `json:"blocks"`
	First   int         `json:"first"` // bytes of buckets
	Rest    int         `json:"rest"`
	Unused  bool        `json:"unused"` // find_unused_parameters
	Static  bool        `json:"static"`
	Views   bool        `json:"views"` // gradient_as_bucket_view of PyTorch's ranks
	Buffers bool        `json:"buffers"`
	Join    bool        `json:"join"`
	Steps   int         `json:"steps"`
	Micro   []int       `json:"micro"` // passes per step, all but the last one without reduction
	old     bool        // of PyTorch 1.13
}

// specPart is a part with parameters; several blocks may share one, and none may use it.
type specPart struct {
	Kind   string   `json:"kind"`
	Type   string   `json:"type"`
	Bias   bool     `json:"bias"`
	Frozen []string `json:"frozen"`
}

// specBlock applies a part, except in passes that it skips.
type specBlock struct {
	Part       int    `json:"part"`
	Activation string `json:"activation"`
	Residual   bool   `json:"residual"`
	Skips      int    `json:"skips"`
	Offset     int    `json:"offset"`
}

// randomSpec makes a model. In PyTorch 1.13 the first bucket has a size of its own, later it has that of the others
// where one is given. There what was accumulated without reduction does not count as used, which lets its ranks drift
// apart.
func randomSpec(r *rand.Rand, old bool) spec {
	s := spec{old: old, Seed: 1 + r.IntN(1<<20), Width: 2 + r.IntN(20), Steps: 3 + r.IntN(4), Views: r.IntN(2) == 0, Buffers: r.IntN(3) > 0}
	s.Rest = []int{1, 77, 500, 1001, 4096, 1 << 20}[r.IntN(6)]
	if s.First = s.Rest; old {
		s.First = []int{1, 33, 600, 1 << 20}[r.IntN(4)]
	}
	for range 1 + r.IntN(3) {
		s.Micro = append(s.Micro, 1+r.IntN(4))
	}
	switch r.IntN(5) {
	case 0, 1:
		s.Unused = true
	case 2:
		s.Static = true
	case 3:
		s.Join = true
	}
	if s.Static || s.Unused && old {
		s.Micro = []int{1} // PyTorch fails an assertion of its own when a static graph is accumulated
	}
	for i := range 1 + r.IntN(5) {
		p := specPart{
			Kind: []string{"linear", "linear", "linear", "layernorm", "batchnorm"}[r.IntN(5)], Type: "float32",
			Bias: r.IntN(3) > 0, Frozen: []string{},
		}
		if i == 0 {
			p.Kind = "linear" // which trains
		}
		if p.Kind != "batchnorm" && r.IntN(3) == 0 {
			p.Type = "float64"
		}
		if i > 0 && r.IntN(3) == 0 {
			p.Frozen = append(p.Frozen, []string{"weight", "bias"}[r.IntN(2)])
		}
		s.Parts = append(s.Parts, p)
	}
	uses := make([]bool, len(s.Parts))
	block := func(k int) {
		b := specBlock{Part: k, Activation: []string{"tanh", "relu", "none"}[r.IntN(3)], Residual: r.IntN(2) == 0, Offset: 1 + r.IntN(3)}
		if s.Unused && r.IntN(2) == 0 {
			b.Skips = 1 + r.IntN(3)
		}
		uses[k] = true
		s.Blocks = append(s.Blocks, b)
	}
	for range 1 + r.IntN(5) {
		block(r.IntN(len(s.Parts)))
	}
	for k, used := range uses {
		if !used && !s.Unused && !s.Static {
			block(k) // every pass reaches all parameters
		}
	}
	if s.Static && !uses[0] {
		block(0)
	}
	if s.Unused { // every rank has a pass, every time
		s.Blocks = append([]specBlock{{Part: 0, Activation: "tanh", Offset: 1}}, s.Blocks...)
	}
	return s
}

// withoutBuffers is broadcast_buffers=False.
func (s spec) withoutBuffers() ddp.Option {
	if s.old {
		return ddp.WithBuffersAtEnds()
	}
	return ddp.WithoutBuffers()
}

// numbers are those of models.py.
func numbers(seed int, shape ...int) *tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	x, s := make([]float64, n), int64(seed)%(1<<31)
	for i := range x {
		s = (s*1103515245 + 12345) % (1 << 31)
		x[i] = float64((s>>8)%2001-1000) / 1024
	}
	return tensor.Must(tensor.From(x, shape...))
}

func quarter(t *tensor.Tensor) *tensor.Tensor {
	return tensor.Must(tensorops.Binary(tensorops.Mul, tensorops.Of(t), tensorops.Num(0.25)))
}

func of(t *tensor.Tensor, dt tensor.DType) *tensor.Tensor {
	return tensor.Must(tensorops.Convert(t, dt))
}

func typeOf(p specPart) tensor.DType {
	if p.Type == "float64" {
		return tensor.Float64
	}
	return tensor.Float32
}

// randomNet is the class Net of models.py.
type randomNet struct {
	spec  spec
	rank  int
	parts []nn.Module
	at    int
}

func newRandomNet(s spec, rank int) *randomNet {
	n := &randomNet{spec: s, rank: rank}
	for _, p := range s.Parts {
		param := func(shape ...int) *autograd.Variable {
			return autograd.Parameter(tensor.Must(tensor.New(typeOf(p), shape...)))
		}
		var m nn.Module
		switch p.Kind {
		case "batchnorm":
			m = nn.NewBatchNorm(s.Width)
		case "layernorm":
			m = &nn.LayerNorm{Weight: param(s.Width), Bias: param(s.Width), Eps: 1e-5}
		default:
			l := &nn.Linear{Weight: param(s.Width, s.Width)}
			if p.Bias {
				l.Bias = param(s.Width)
			}
			m = l
		}
		n.parts = append(n.parts, m)
	}
	for i, p := range n.Params() {
		v := p.Value
		if err := v.Data().CopyFrom(of(quarter(numbers(s.Seed+100*i+rank, v.Shape()...)), v.DType())); err != nil {
			panic(err)
		}
	}
	for k, p := range s.Parts {
		for _, q := range n.parts[k].Params() {
			if slices.Contains(p.Frozen, q.Name) {
				_ = q.Value.SetRequiresGrad(false)
			}
		}
	}
	return n
}

func (n *randomNet) Params() (all []nn.Param) {
	for i, m := range n.parts {
		all = append(all, nn.Prefix("parts."+strconv.Itoa(i), m.Params())...)
	}
	return all
}

func (n *randomNet) Buffers() (all []nn.Buffer) {
	for i, m := range n.parts {
		for _, b := range nn.Buffers(m) {
			all = append(all, nn.Buffer{Name: "parts." + strconv.Itoa(i) + "." + b.Name, Value: b.Value})
		}
	}
	return all
}

func (n *randomNet) Forward(x *autograd.Variable) *autograd.Variable {
	for _, b := range n.spec.Blocks {
		if b.Skips > 0 && (n.at+b.Offset*(1+n.rank))%b.Skips == 0 {
			continue
		}
		y := n.parts[b.Part].Forward(x.To(typeOf(n.spec.Parts[b.Part])))
		switch b.Activation {
		case "tanh":
			y = y.Tanh()
		case "relu":
			y = y.ReLU()
		}
		if b.Residual {
			y = x.Add(y)
		}
		x = y
	}
	return x
}

// trainRandom does what train of models.py does, and returns the parameters and buffers.
func trainRandom(ctx context.Context, g *group.Group, s spec) (state [][]float64, err error) {
	rank := int(g.Rank())
	net := newRandomNet(s, rank)
	opts := []ddp.Option{ddp.WithBuckets(s.First, s.Rest)}
	if s.Unused {
		opts = append(opts, ddp.WithFindUnused())
	}
	if s.Static {
		opts = append(opts, ddp.WithStaticGraph())
	}
	if !s.Buffers {
		opts = append(opts, s.withoutBuffers())
	}
	model, err := ddp.New(ctx, g, net, opts...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = model.Close() }()
	opt, err := optim.New(optim.SGD{LR: 1.0 / 64}, nn.Variables(net))
	if err != nil {
		return nil, err
	}
	train := func(steps int) error {
		for step := range steps {
			opt.ZeroGrad()
			micro := s.Micro[step%len(s.Micro)]
			for k := range micro {
				net.at = step*5 + k
				x := of(numbers(s.Seed*7+step*64+k*8+rank, 4, s.Width), tensor.Float32)
				y := numbers(s.Seed*11+step*64+k*8+rank, 4, s.Width)
				model.SetSync(k == micro-1)
				out := model.Forward(ctx, autograd.Constant(x))
				if failed := out.Err(); failed != nil {
					return failed
				}
				if !out.RequiresGrad() {
					continue
				}
				if failed := autograd.MSE(out, autograd.Constant(of(y, out.DType())), autograd.ReduceMean).Backward(ctx); failed != nil {
					return fmt.Errorf("step %d, pass %d: %w", step, k, failed)
				}
			}
			if failed := opt.Step(); failed != nil {
				return failed
			}
		}
		return nil
	}
	if s.Join {
		err = model.Join(ctx, func() error { return train(s.Steps + rank) })
	} else {
		err = train(s.Steps)
	}
	if err != nil {
		return nil, err
	}
	for _, p := range net.Params() {
		xs, err := tensor.Copy[float64](of(p.Value.Data(), tensor.Float64))
		if err != nil {
			return nil, err
		}
		state = append(state, xs)
	}
	for _, b := range net.Buffers() {
		if b.Value.DType() == tensor.Int64 {
			continue
		}
		xs, err := tensor.Copy[float64](of(b.Value, tensor.Float64))
		if err != nil {
			return nil, err
		}
		state = append(state, xs)
	}
	return state, nil
}

// stateOf reads what a PyTorch rank has printed about one model.
func stateOf(t *testing.T, p *torchtest.Proc) (state [][]float64) {
	t.Helper()
	var all [][]string
	if err := json.Unmarshal([]byte(p.Line(t)), &all); err != nil {
		t.Fatal(err)
	}
	for _, list := range all {
		xs := make([]float64, len(list))
		for i, s := range list {
			var err error
			if xs[i], err = strconv.ParseFloat(s, 64); err != nil {
				t.Fatal(err)
			}
		}
		state = append(state, xs)
	}
	return state
}

// apart is the largest difference of two states, and the largest number of the second.
func apart(a, b [][]float64) (most, largest float64) {
	if len(a) != len(b) {
		return math.Inf(1), 0
	}
	for i := range a {
		if len(a[i]) != len(b[i]) {
			return math.Inf(1), 0
		}
		for j := range a[i] {
			if d := math.Abs(a[i][j] - b[i][j]); !(d <= most) {
				most = d
			}
			largest = max(largest, math.Abs(b[i][j]))
		}
	}
	return most, largest
}

// inDouble is a model with all of its parts in float64.
func inDouble(s spec) spec {
	s.Parts = slices.Clone(s.Parts)
	for i := range s.Parts {
		s.Parts[i].Type = "float64"
	}
	return s
}

// TestRandomModels trains random models in a job of a Go rank and PyTorch ranks, and in one of PyTorch ranks alone:
// shared, frozen and unused parameters, of two types; buffers; buckets of odd sizes; accumulation of odd lengths;
// static graphs; uneven data. The ranks of the mixed job agree bit by bit, and differ from a job in float64 by four
// times as much as those of the other job at most, or by 1e-5 of the largest number.
func TestRandomModels(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		for size := 2; size <= 3; size++ {
			for own := range size {
				t.Run(fmt.Sprintf("size=%d,go=%d", size, own), func(t *testing.T) { randomModels(t, torch, size, own, *randoms) })
			}
		}
	})
}

func randomModels(t *testing.T, torch *torchtest.Torch, size, own, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r := rand.New(rand.NewPCG(*randomSeed, uint64(size*10+own)))
	specs, both := make([]spec, count), []spec(nil)
	for i := range specs {
		specs[i] = randomSpec(r, torch == torchtest.V113)
		both = append(both, specs[i], inDouble(specs[i]))
	}
	begin := func(port, rank int, specs []spec) *torchtest.Proc {
		text, err := json.Marshal(specs)
		if err != nil {
			t.Fatal(err)
		}
		return torch.Start(t, torchtest.Script{
			Name: "models.py", Source: randomScript, Shared: torchtest.Optimizers,
			Args: []string{string(text)}, Env: map[string]string{
				"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(port),
			},
		})
	}
	mixed, alone := testkit.FreePort(t), testkit.FreePort(t)
	others, reference := make([]*torchtest.Proc, size), make([]*torchtest.Proc, size)
	for rank := range size {
		if rank != own {
			others[rank] = begin(mixed, rank, specs)
		}
		reference[rank] = begin(alone, rank, both)
	}
	w, err := world.Join(ctx, fmt.Sprintf("tcp://127.0.0.1:%d?rank=%d&world_size=%d", mixed, own, size), world.WithTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	g, err := w.Group(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		describe, _ := json.Marshal(s)
		t.Logf("%s", describe)
		got, err := trainRandom(ctx, g, s)
		if err != nil {
			t.Fatalf("%v\n%s", err, describe)
		}
		params := len(newRandomNet(s, own).Params())
		for rank := range size {
			alone, exact := stateOf(t, reference[rank]), stateOf(t, reference[rank])
			have := got
			if rank != own {
				have = stateOf(t, others[rank])
				if d, _ := apart(have[:params], got[:params]); d != 0 {
					t.Errorf("the parameters of rank %d differ from those of the Go rank by %v\n%s", rank, d, describe)
				}
			}
			theirs, largest := apart(alone, exact)
			if ours, _ := apart(have, exact); !(ours <= max(4*theirs, 1e-5*largest)) {
				t.Errorf("rank %d differs from a job in float64 by %v, that of a PyTorch job by %v\n%s", rank, ours, theirs, describe)
			}
		}
		if t.Failed() {
			return
		}
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for rank := range size {
		if p := others[rank]; p != nil {
			p.MustExit(t, time.Minute)
		}
		reference[rank].MustExit(t, time.Minute)
	}
}
