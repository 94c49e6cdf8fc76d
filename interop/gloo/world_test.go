// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package gloo joins real PyTorch worlds over gloo's wire, below the public API.
package gloo

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/group/collective"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/group/monitoredbarrier"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/internal/tensor/reduce"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

//go:embed testdata/worker.py
var worker string

// TestMain also fails when goroutines of a mesh are left; those of the harness live as long as the process.
func TestMain(m *testing.M) {
	code := m.Run()
	deadline := time.Now().Add(20 * time.Second)
	for code == 0 {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if !strings.Contains(string(stacks), "cohort/internal/group/gloo.") {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintf(os.Stderr, "goroutines of a mesh are left:\n%s\n", stacks)
			code = 1
		}
		time.Sleep(10 * time.Millisecond)
	}
	os.Exit(code)
}

// step is one operation of a plan.
type step struct {
	Op      string  `json:"op"`
	DType   string  `json:"dtype,omitempty"`
	N       int     `json:"n"`
	Root    int     `json:"root"`
	Red     string  `json:"red,omitempty"`
	Tag     int     `json:"tag,omitempty"`
	Count   int     `json:"count,omitempty"`
	Pairs   [][]int `json:"pairs,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	GoOn    bool    `json:"go_on,omitempty"`
}

func (s step) String() string {
	return fmt.Sprintf("%s %s n=%d root=%d %s", s.Op, s.DType, s.N, s.Root, s.Red)
}

// member is a Go rank of a PyTorch world.
type member struct {
	rank, size int
	layout     gloo.Layout
	kv         *tcpstore.Client
	mesh       *gloo.Mesh
	engine     *gloo.Engine
	tag        uint32
	groups     int
	timeout    time.Duration
	change     func(*gloo.Config)
}

// join does what init_process_group does.
func join(ctx context.Context, tr *torchtest.Torch, addr string, rank, size int, timeout time.Duration,
	change func(*gloo.Config),
) (*member, error) {
	m := &member{rank: rank, size: size, layout: gloo.Torch26, timeout: timeout, change: change}
	dialect := tcpstore.WithDialect(tcpstore.DialectAuto)
	if tr.Name == "1.13" {
		m.layout = gloo.Torch113
	}
	var err error
	if m.kv, err = tcpstore.Dial(ctx, addr, dialect); err != nil {
		return nil, err
	}
	if _, err = m.kv.JoinWorker(ctx); err != nil {
		return nil, err
	}
	if m.mesh, err = m.newGroup(ctx, gloo.GroupName(0), rank, size); err != nil {
		return m, err
	}
	m.engine = gloo.NewEngine(m.mesh)
	return m, m.settle(ctx, 0, gloo.GroupName(0), rank == 0, true)
}

// newGroup connects the members of a group.
func (m *member) newGroup(ctx context.Context, name string, rank, size int) (*gloo.Mesh, error) {
	c := gloo.Config{
		Rank: rank, Size: size, Store: m.kv, Prefix: m.layout.MeshPrefix(gloo.DefaultPrefix, name), Generation: m.layout.GenerationOf(),
		Timeout: m.timeout, StoreAddr: m.kv.Addr(),
	}
	if m.change != nil {
		m.change(&c)
	}
	return gloo.Connect(ctx, c)
}

// settle passes the store barrier and the sequence number of PyTorch 1.13.
func (m *member) settle(ctx context.Context, k int, name string, first, isMember bool) error {
	if m.layout != gloo.Torch113 {
		return nil
	}
	key := m.layout.BarrierKey(gloo.DefaultPrefix, k)
	n, err := m.kv.Add(ctx, key, 1)
	for err == nil && n < int64(m.size) {
		time.Sleep(5 * time.Millisecond)
		n, err = m.kv.Add(ctx, key, 0)
	}
	if err != nil || !isMember {
		return err
	}
	seq := m.layout.SequenceKey(gloo.DefaultPrefix, name)
	if first {
		return m.kv.Set(ctx, seq, []byte{1, 2, 3, 4, 0, 0, 0, 0})
	}
	_, err = m.kv.Get(ctx, seq)
	return err
}

func (m *member) close() {
	if m.mesh != nil {
		_ = m.mesh.Close()
	}
	_ = m.kv.Close()
}

func (m *member) nextTag() uint32 {
	m.tag++
	return m.tag - 1
}

// run runs one step and returns the hash that worker.py prints.
func (m *member) run(ctx context.Context, i int, s step) (string, error) {
	if s.DType == "" {
		s.DType = "float32"
	}
	dt := dtypes[s.DType]
	mine := values(s.DType, s.N, m.rank, i, 0)
	q := collective.Request{Root: s.Root, DType: dt, Op: redOps[s.Red], Timeout: m.timeout}
	parts := func(n func(p int) int) (all []byte, counts []int) {
		for p := range m.size {
			part := values(s.DType, n(p), m.rank, i, p)
			all, counts = append(all, part...), append(counts, len(part))
		}
		return all, counts
	}
	same := func(int) int { return s.N }
	rooted := func(b []byte) string {
		if m.rank != s.Root {
			return "-"
		}
		return digest(b)
	}
	do := func() error {
		q.Tag = m.nextTag()
		return m.engine.Run(ctx, &q)
	}
	switch s.Op {
	case "all_reduce":
		q.Kind, q.Out = collective.AllReduce, mine
		err := do()
		return digest(q.Out), err
	case "broadcast":
		q.Kind, q.Out = collective.Broadcast, mine
		err := do()
		return digest(q.Out), err
	case "reduce":
		q.Kind, q.Out = collective.Reduce, mine
		before := slices.Clone(mine)
		err := do()
		if err == nil && m.rank != s.Root && !slices.Equal(before, mine) {
			err = errors.New("reduce changed the buffer of a rank that is not the root")
		}
		return rooted(q.Out), err
	case "all_gather":
		q.Kind, q.In, q.Out = collective.AllGather, mine, make([]byte, len(mine)*m.size)
		err := do()
		return digest(q.Out), err
	case "gather":
		q.Kind, q.In = collective.Gather, mine
		if m.rank == s.Root {
			q.Out = make([]byte, len(mine)*m.size)
		}
		err := do()
		return rooted(q.Out), err
	case "scatter":
		q.Kind, q.Out = collective.Scatter, make([]byte, len(mine))
		if m.rank == s.Root {
			q.In, _ = parts(same)
		}
		err := do()
		return digest(q.Out), err
	case "all_to_all":
		q.Kind = collective.AllToAll
		q.In, _ = parts(same)
		q.Out = make([]byte, len(q.In))
		err := do()
		return digest(q.Out), err
	case "all_to_all_v":
		q.Kind = collective.AllToAll
		q.In, q.InCounts = parts(func(p int) int { return s.N + (m.rank+p)%3 })
		q.OutCounts, q.Out = q.InCounts, make([]byte, len(q.In))
		err := do()
		return digest(q.Out), err
	case "reduce_scatter":
		q.Kind, q.Op = collective.ReduceScatter, reduce.Sum
		q.In, _ = parts(same)
		q.Out = make([]byte, len(mine))
		err := do()
		return digest(q.Out), err
	case "barrier":
		q.Kind = collective.Barrier
		return "-", do()
	case "monitored_barrier":
		t1, t2 := m.nextTag(), m.nextTag()
		return "-", (&monitoredbarrier.Barrier{Mesh: m.mesh, Report: uint64(t1), Release: uint64(t2), Limit: m.timeout, All: true}).Run(ctx)
	case "ring":
		out := make([]byte, len(mine))
		send := &transport.Op{Peer: (m.rank + 1) % m.size, Slot: uint64(s.Tag), Buf: mine}
		recv := &transport.Op{Peer: (m.rank + m.size - 1) % m.size, Slot: uint64(s.Tag), Buf: out}
		m.mesh.Send(send)
		m.mesh.Recv(recv)
		err := errors.Join(m.mesh.Wait(ctx, send), m.mesh.Wait(ctx, recv))
		return digest(out), err
	case "recv_any":
		if m.rank != s.Root {
			send := &transport.Op{Peer: s.Root, Slot: uint64(s.Tag), Buf: mine}
			m.mesh.Send(send)
			return "-", m.mesh.Wait(ctx, send)
		}
		outs := make([][]byte, m.size)
		for range m.size - 1 {
			recv := &transport.Op{Peer: transport.AnyPeer, Slot: uint64(s.Tag), Buf: make([]byte, len(mine))}
			m.mesh.Recv(recv)
			if err := m.mesh.Wait(ctx, recv); err != nil {
				return "", err
			}
			outs[recv.Source] = recv.Buf
		}
		return digest(outs...), nil
	case "overlap":
		outs, errs := make([][]byte, s.Count), make([]error, s.Count)
		var wg sync.WaitGroup
		for k := range s.Count {
			q := q
			outs[k] = values(s.DType, s.N+k, m.rank, i, k)
			q.Kind, q.Out, q.Tag = collective.AllReduce, outs[k], m.nextTag()
			wg.Go(func() { errs[k] = m.engine.Run(ctx, &q) })
		}
		wg.Wait()
		return digest(outs...), errors.Join(errs...)
	case "sub_groups":
		return m.subGroups(ctx, i, s)
	case "sleep":
		time.Sleep(time.Duration(s.Seconds * float64(time.Second)))
		return "-", nil
	case "die":
		return "-", nil
	}
	return "", fmt.Errorf("unknown step %q", s.Op)
}

func (m *member) subGroups(ctx context.Context, i int, s step) (string, error) {
	var hashes []string
	for _, pair := range s.Pairs {
		m.groups++
		name := gloo.GroupName(m.groups)
		at := slices.Index(pair, m.rank)
		var mesh *gloo.Mesh
		if at >= 0 {
			var err error
			if mesh, err = m.newGroup(ctx, name, at, len(pair)); err != nil {
				return "", err
			}
			defer func() { _ = mesh.Close() }()
		}
		if err := m.settle(ctx, m.groups, name, at == 0, at >= 0); err != nil {
			return "", err
		}
		if mesh == nil {
			continue
		}
		e := gloo.NewEngine(mesh)
		q := collective.Request{
			Kind: collective.AllReduce, DType: dtypes[s.DType], Out: values(s.DType, s.N, m.rank, i, 0),
			Timeout: m.timeout,
		}
		if err := e.Run(ctx, &q); err != nil {
			return "", err
		}
		if err := e.Run(ctx, &collective.Request{Kind: collective.Barrier, Tag: 1, Timeout: m.timeout}); err != nil {
			return "", err
		}
		hashes = append(hashes, digest(q.Out))
	}
	if len(hashes) == 0 {
		return "-", nil
	}
	return strings.Join(hashes, ","), nil
}

// world runs a plan on a world of size ranks, of which goRanks are Go, and returns what every rank got per step.
func world(tb testing.TB, tr *torchtest.Torch, size int, goRanks []int, plan []step, timeout time.Duration, env map[string]string,
	change func(*gloo.Config),
) [][]string {
	tb.Helper()
	w := start(tb, tr, size, goRanks, plan, timeout, env, change)
	return w.finish(tb)
}

// running is a world whose Go ranks have joined.
type running struct {
	size    int
	plan    []step
	procs   map[int]*torchtest.Proc
	members map[int]*member
	server  *tcpstore.Server
	ctx     context.Context //nolint:containedctx // the life of the test
}

func start(tb testing.TB, tr *torchtest.Torch, size int, goRanks []int, plan []step, timeout time.Duration, env map[string]string,
	change func(*gloo.Config),
) *running {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	tb.Cleanup(cancel)
	w := &running{size: size, plan: plan, procs: map[int]*torchtest.Proc{}, members: map[int]*member{}, ctx: ctx}
	var port int
	if slices.Contains(goRanks, 0) {
		server, err := tcpstore.Listen("127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = server.Close() })
		w.server, port = server, server.Port()
	} else {
		port = testkit.FreePort(tb)
	}
	text, err := json.Marshal(plan)
	if err != nil {
		tb.Fatal(err)
	}
	for r := range size {
		if !slices.Contains(goRanks, r) {
			w.procs[r] = tr.Start(tb, torchtest.Script{
				Name: fmt.Sprintf("rank%d.py", r), Source: worker, Env: env,
				Args: []string{strconv.Itoa(r), strconv.Itoa(size), strconv.Itoa(port), string(text), fmt.Sprint(timeout.Seconds())},
			})
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failures []error
	for _, r := range goRanks {
		wg.Go(func() {
			m, err := join(ctx, tr, fmt.Sprintf("127.0.0.1:%d", port), r, size, timeout, change)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, fmt.Errorf("rank %d: %w", r, err))
			}
			if m != nil {
				w.members[r] = m
				tb.Cleanup(m.close)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		tb.Fatal(err)
	}
	return w
}

// finish runs the plan and returns the results, checked against nothing.
func (w *running) finish(tb testing.TB) [][]string {
	tb.Helper()
	results := make([][]string, w.size)
	var wg sync.WaitGroup
	for r, m := range w.members {
		results[r] = make([]string, len(w.plan))
		wg.Go(func() {
			for i, s := range w.plan {
				h, err := m.run(w.ctx, i, s)
				if err != nil {
					tb.Errorf("Go rank %d, step %d (%s): %v", r, i, s, err)
					m.mesh.Fail(err)
					return
				}
				results[r][i] = h
			}
		})
	}
	wg.Wait()
	for r, p := range w.procs {
		results[r] = make([]string, len(w.plan))
		p.Expect(tb, "joined")
		for i := range w.plan {
			line := p.Line(tb)
			h, ok := strings.CutPrefix(line, fmt.Sprintf("step %d ", i))
			if !ok || strings.HasPrefix(h, "error") {
				tb.Fatalf("PyTorch rank %d, step %d (%s): %s", r, i, w.plan[i], line)
			}
			results[r][i] = h
		}
		p.Expect(tb, "done")
	}
	for _, p := range w.procs {
		p.Send(tb, "exit")
	}
	for _, p := range w.procs {
		p.MustExit(tb, time.Minute)
	}
	return results
}
