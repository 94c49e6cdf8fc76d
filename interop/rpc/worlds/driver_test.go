// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/world"
)

// command is one operation of one worker; worker.py reads the same.
type command struct {
	ID      int              `json:"id"`
	Op      string           `json:"op"`
	Name    string           `json:"name,omitempty"`
	URL     string           `json:"url,omitempty"`
	Rank    int              `json:"rank,omitempty"`
	Size    int              `json:"size,omitempty"` // 0 in a dynamic world
	Round   int              `json:"round,omitempty"`
	Port    int              `json:"port,omitempty"`  // of the environment, for env://
	Limit   float64          `json:"limit,omitempty"` // the agent's timeout
	Rude    bool             `json:"rude,omitempty"`  // leave without the others
	To      string           `json:"to,omitempty"`
	Fn      string           `json:"fn,omitempty"`
	Mode    string           `json:"mode,omitempty"` // sync, async or remote
	Wrap    string           `json:"wrap,omitempty"` // PyTorch callers: autograd or profile
	Timeout float64          `json:"timeout,omitempty"`
	Confirm bool             `json:"confirm,omitempty"`
	Args    []value          `json:"args,omitempty"`
	Kwargs  map[string]value `json:"kwargs,omitempty"`
	Ref     *place           `json:"ref,omitempty"`
	Slot    string           `json:"slot,omitempty"` // where the references of the result are kept
	Raises  *raises          `json:"raises,omitempty"`
}

// place is where a worker keeps a reference.
type place struct {
	Slot  string `json:"slot"`
	Index int    `json:"index,omitempty"`
}

// raises is the exception that a command must end with.
type raises struct {
	Kind    string `json:"kind"`
	Text    string `json:"text"`
	Worker  string `json:"worker"`
	ID      int    `json:"id"`
	Mangled bool   `json:"mangled,omitempty"`
}

type reply struct {
	ID    int    `json:"id"`
	Value string `json:"value"`
	Refs  int    `json:"refs,omitempty"`
}

// driver runs the commands of a Go worker.
type driver struct {
	logger *slog.Logger

	mu    sync.Mutex
	world *world.World
	host  bool // it hosts the store
	agent *rpc.Agent
	slots map[string][]*rpc.Ref[any]
	gates map[string]chan struct{}
}

func newDriver(logger *slog.Logger) *driver {
	return &driver{logger: logger, slots: map[string][]*rpc.Ref[any]{}, gates: map[string]chan struct{}{}}
}

func (d *driver) run(ctx context.Context, c command) reply {
	text, refs, err := d.execute(ctx, c)
	if err != nil {
		text = failureText(err)
	}
	return reply{ID: c.ID, Value: text, Refs: refs}
}

// failureText writes an error for comparison; raised in worker.py writes the same for what PyTorch raises.
func failureText(err error) string {
	if errors.Is(err, cohort.DeadlineExceeded) {
		return "!timeout"
	}
	if remote, ok := errors.AsType[*rpc.RemoteError](err); ok {
		return fmt.Sprintf("!%s|%s|%s", remote.Kind, remote.Message, remote.Worker)
	}
	return fmt.Sprintf("!%v: %v", cohort.CodeOf(err), err)
}

func (d *driver) execute(ctx context.Context, c command) (string, int, error) {
	switch c.Op {
	case "join":
		return "joined", 0, d.join(ctx, c)
	case "leave":
		return "left", 0, d.leave(ctx, c)
	case "drop":
		d.drop(c.Slot)
		return "dropped", 0, nil
	case "dropall":
		d.mu.Lock()
		names := make([]string, 0, len(d.slots))
		for name := range d.slots {
			names = append(names, name)
		}
		d.mu.Unlock()
		for _, name := range names {
			d.drop(name)
		}
		return "dropped", 0, nil
	case "collect":
		runtime.GC() // what passed through a handler has no owner that closes it
		info := map[string]int{}
		for key, n := range d.agent.DebugInfo() {
			if n != 0 && strings.HasPrefix(key, "num_") && key != "num_collected_rrefs" {
				info[key] = n
			}
		}
		b, err := json.Marshal(info)
		return string(b), 0, err
	case "block":
		bounded, cancel := context.WithTimeout(ctx, time.Duration(c.Timeout*float64(time.Second)))
		defer cancel()
		text := "no timeout"
		if _, err := rpc.Call[any](bounded, d.agent, c.To, "world.block", c.Slot); err != nil {
			text = failureText(err)
		}
		_, err := rpc.Call[any](ctx, d.agent, c.To, "world.release", c.Slot)
		return text, 0, err
	}
	out, err := d.operate(ctx, c)
	if err != nil {
		return "", 0, err
	}
	w := &writer{}
	text := w.text(out)
	if w.err != nil {
		return "", 0, w.err
	}
	if kept, err := d.objectsOwn(c, w.refs); err != nil {
		return "", 0, err
	} else if kept {
		return text, len(w.refs), nil
	}
	if c.Slot != "" {
		d.mu.Lock()
		d.slots[c.Slot] = w.refs
		d.mu.Unlock()
		return text, len(w.refs), nil
	}
	closeAll(w.refs)
	return text, len(w.refs), nil
}

// objectsOwn treats the references inside an object of this worker, which remain the object's.
func (d *driver) objectsOwn(c command, refs []*rpc.Ref[any]) (bool, error) {
	switch {
	case c.Op == "fetch", c.Op == "local":
		r, err := d.reference(c)
		if err != nil || !r.IsOwner() {
			return false, err
		}
	case (c.Op == "call" || c.Op == "method") && c.Mode == "remote": // made here, and fetched from here
		if c.Op == "call" && c.To != d.agent.Name() {
			return false, nil
		}
		if c.Op == "method" {
			r, err := d.reference(c)
			if err != nil || !r.IsOwner() {
				return false, err
			}
		}
	default:
		return false, nil
	}
	if c.Slot == "" {
		return true, nil
	}
	var clones []*rpc.Ref[any]
	for _, inside := range refs {
		twin, err := inside.Clone()
		if err != nil {
			return false, err
		}
		clones = append(clones, twin)
	}
	d.mu.Lock()
	d.slots[c.Slot] = clones
	d.mu.Unlock()
	return true, nil
}

func (d *driver) reference(c command) (*rpc.Ref[any], error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	refs := d.slots[c.Ref.Slot]
	if c.Ref.Index >= len(refs) {
		return nil, fmt.Errorf("no reference %d in slot %s", c.Ref.Index, c.Ref.Slot)
	}
	return refs[c.Ref.Index], nil
}

func closeAll(refs []*rpc.Ref[any]) {
	for _, r := range refs {
		_ = r.Close()
	}
}

func (d *driver) drop(name string) {
	d.mu.Lock()
	refs := d.slots[name]
	delete(d.slots, name)
	d.mu.Unlock()
	closeAll(refs)
}

// operate does what run in worker.py does.
func (d *driver) operate(ctx context.Context, c command) (any, error) {
	args, err := d.arguments(c)
	if err != nil {
		return nil, err
	}
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.Timeout*float64(time.Second)))
		defer cancel()
	}
	a := d.agent
	switch c.Op {
	case "call":
		switch c.Mode {
		case "sync":
			return rpc.Call[any](ctx, a, c.To, c.Fn, args...)
		case "async":
			return rpc.Async[any](ctx, a, c.To, c.Fn, args...).Await(ctx)
		}
		ref, failed := rpc.Remote[any](ctx, a, c.To, c.Fn, args...)
		if failed != nil {
			return nil, failed
		}
		defer func() { _ = ref.Close() }()
		return ref.Fetch(ctx)
	case "create":
		ctx = context.WithoutCancel(ctx) // it bounds the creation, which goes on when the command is done
		ref, failed := rpc.Remote[any](ctx, a, c.To, c.Fn, args...)
		if failed == nil && c.Confirm {
			failed = ref.Confirmed(ctx)
		}
		return ref, failed
	case "own":
		return rpc.NewRef(a, args[0])
	case "ownbox":
		b := &box{}
		n, _ := args[0].(int64)
		b.n.Store(n)
		return rpc.NewRef[any](a, b)
	}
	r, err := d.reference(c)
	if err != nil {
		return nil, err
	}
	switch c.Op {
	case "fetch":
		return r.Fetch(ctx)
	case "local":
		return r.LocalValue(ctx)
	case "about":
		return py.Tuple{r.IsOwner(), r.Owner().Name, int64(r.Owner().ID)}, nil
	case "copy":
		return r.Clone()
	case "method":
		switch c.Mode {
		case "sync":
			return rpc.CallMethod[any](ctx, r, c.Fn, args...)
		case "async":
			return rpc.AsyncMethod[any](ctx, r, c.Fn, args...).Await(ctx)
		}
		result, failed := rpc.RemoteMethod[any](ctx, r, c.Fn, args...)
		if failed != nil {
			return nil, failed
		}
		defer func() { _ = result.Close() }()
		return result.Fetch(ctx)
	}
	return nil, fmt.Errorf("unknown operation %q", c.Op)
}

func (d *driver) arguments(c command) ([]any, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &builder{slots: d.slots, stores: map[int]*tensor.Storage{}}
	var args []any
	for _, v := range c.Args {
		x, err := b.build(v)
		if err != nil {
			return nil, err
		}
		args = append(args, x)
	}
	if len(c.Kwargs) > 0 {
		kw := rpc.Kw{}
		for name, v := range c.Kwargs {
			x, err := b.build(v)
			if err != nil {
				return nil, err
			}
			kw[name] = x
		}
		args = append(args, kw)
	}
	return args, nil
}

// join enters the world of a round. A worker that hosts the store keeps its place between rounds; others come back
// through the rendezvous, as PyTorch's do.
func (d *driver) join(ctx context.Context, c command) error {
	if d.world == nil {
		env := map[string]string{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(c.Port)}
		opts := []rendezvous.Option{rendezvous.WithEnv(func(name string) (string, bool) { v, ok := env[name]; return v, ok })}
		joining := []world.Option{world.WithRank(cohort.Rank(c.Rank)), world.WithLogger(d.logger)}
		if c.Size == 0 {
			opts = append(opts, rendezvous.WithOpenWorld())
		} else {
			joining = append(joining, world.WithWorldSize(c.Size))
		}
		w, err := world.Join(ctx, c.URL, append(joining, world.WithRendezvous(opts...))...)
		if err != nil {
			return err
		}
		d.world, d.host = w, c.Rank == 0
	}
	agent, err := d.world.RPC(ctx, c.Name, rpc.WithHandlers(d.handlers()), operators.Serve(), rpc.WithAddr("127.0.0.1:0"),
		rpc.WithRound(c.Round),
		rpc.WithTimeout(time.Duration(c.Limit*float64(time.Second))), rpc.WithLogger(d.logger), rpc.WithLeakCheck())
	if err != nil {
		return err
	}
	d.agent = agent
	return nil
}

func (d *driver) leave(ctx context.Context, c command) error {
	if c.Rude {
		if d.world == nil {
			return nil
		}
		return d.world.Close()
	}
	if err := d.agent.Shutdown(ctx); err != nil {
		return err
	}
	if d.host {
		return nil
	}
	w := d.world
	d.world = nil
	return w.Close()
}

func (d *driver) close() {
	if d.world != nil {
		_ = d.world.Close()
	}
}

const childEnv = "COHORT_INTEROP_RPC_CHILD"

// child is a Go worker in a process of its own: it reads and answers what worker.py does.
func child(spec string) int {
	var name string
	var port int
	if n, _ := fmt.Sscan(spec, &name, &port); n != 2 {
		return 2
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 3
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintln(conn, name)
	d := newDriver(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	var mu sync.Mutex
	out, in := json.NewEncoder(conn), json.NewDecoder(conn)
	for {
		var c command
		if err := in.Decode(&c); err != nil || c.Op == "exit" {
			d.close()
			return 0
		}
		go func() {
			r := d.run(context.Background(), c)
			mu.Lock()
			defer mu.Unlock()
			_ = out.Encode(r)
		}()
	}
}
