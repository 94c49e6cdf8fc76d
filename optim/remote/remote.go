// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package remote has an optimizer for parameters on several workers: the worker that owns a parameter updates it, with
// the gradients that a distributed backward pass has left there. It corresponds to
// torch.distributed.optim.DistributedOptimizer and uses its wire: a Go worker can step parameters of PyTorch workers and
// vice versa.
//
//	remote.Serve(reg, engine, nil)                   // at every worker that owns parameters
//
//	opt, err := remote.New(ctx, agent, optim.SGD{LR: 0.1}, params)   // params are []*rpc.Ref[*autograd.Variable]
//	defer opt.Close()
//	err = c.Backward(gctx, []*autograd.Variable{loss})
//	err = opt.Step(gctx, c)
package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
)

// The functions of PyTorch's distributed optimizer.
const (
	module      = "torch.distributed.optim.optimizer."
	newScript   = module + "_new_script_local_optimizer"
	newPlain    = module + "_new_local_optimizer"
	stepScript  = "__torch__." + module + "_script_local_optimizer_step"
	stepPlain   = module + "_local_optimizer_step"
	scriptType  = "__torch__." + module + "_ScriptLocalOptimizerInterface"
	stepHandler = module + "_script_local_optimizer_step"
)

// local is the part of an [Optimizer] at a worker that owns parameters.
type local struct{ opt *optim.Optimizer }

// Optimizer updates parameters on the workers that own them. Steps of several optimizers on one worker run one after
// another.
type Optimizer struct {
	agent *rpc.Agent
	step  string // the function that steps a part
	parts []*rpc.Ref[*local]
}

// New makes an optimizer of parameters that references refer to. Their owners have to serve it, see [Serve]; a PyTorch worker
// does. The references stay the caller's to close.
func New(ctx context.Context, a *rpc.Agent, rule optim.Rule, params []*rpc.Ref[*autograd.Variable]) (*Optimizer, error) {
	if len(params) == 0 {
		return nil, badOptimizer("optimizer got an empty parameter list")
	}
	name, kw, err := describe(rule)
	if err != nil {
		return nil, err
	}
	var owners []string
	byOwner := map[string][]any{}
	for i, p := range params {
		if p == nil {
			return nil, badOptimizer("parameter %d is a nil reference", i)
		}
		owner := p.Owner().Name
		if byOwner[owner] == nil {
			owners = append(owners, owner)
		}
		byOwner[owner] = append(byOwner[owner], p)
	}
	o := &Optimizer{agent: a, step: stepScript}
	create := newScript
	if name.Module == ordinary { // PyTorch cannot make TorchScript of it
		create, o.step = newPlain, stepPlain
	}
	futures := make([]*cohort.Future[*rpc.Ref[*local]], len(owners))
	for i, owner := range owners {
		futures[i] = rpc.Async[*rpc.Ref[*local]](ctx, a, owner, create, name, byOwner[owner], kw)
	}
	if o.parts, err = settled(ctx, "optim: remote", futures); err != nil {
		_ = o.Close()
		return nil, err
	}
	return o, nil
}

// Step updates every parameter that has a gradient in the context, on all owners. If it fails on one owner, the others
// are still updated; the error reports where it failed. It corresponds to DistributedOptimizer.step.
func (o *Optimizer) Step(ctx context.Context, c *distautograd.Context) error {
	select {
	case <-c.Done():
		return cohort.Newf("optim: step", cohort.Closed, "the autograd context %d is closed", c.ID())
	default:
	}
	futures := make([]*cohort.Future[any], len(o.parts))
	for i, part := range o.parts {
		futures[i] = rpc.Async[any](ctx, o.agent, part.Owner().Name, o.step, part, int64(c.ID()))
	}
	_, err := settled(ctx, "optim: step", futures)
	return err
}

// settled waits for calls that were made with ctx, and returns the results of those that have succeeded. The error
// names the first worker that has failed. The end of ctx ends the calls, and their errors name the worker: the wait
// itself continues until then.
func settled[T any](ctx context.Context, op string, futures []*cohort.Future[T]) (results []T, err error) {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for _, f := range futures {
		v, failed := rpc.Await(ctx, f)
		if failed != nil {
			errs = append(errs, failed)
			continue
		}
		results = append(results, v)
	}
	if len(errs) == 0 {
		return results, nil
	}
	e := cohort.Wrap(op, cohort.Remote, errors.Join(errs...))
	if first, ok := errors.AsType[*cohort.Error](errs[0]); ok {
		e.Rank, e.Peer = first.Rank, first.Peer
	}
	return results, e
}

// Close releases the optimizer's parts on the owners.
func (o *Optimizer) Close() error {
	var errs []error
	for _, p := range o.parts {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Serve lets the worker that reg and engine belong to own parameters of distributed optimizers, those of Go programs and of
// PyTorch's DistributedOptimizer. A step changes the parameters in place, while it holds lock; handlers that compute with them
// at the same time hold it too, or use a copy that was made with it. Without a lock, nil, the program sees to it that no step
// runs while others compute.
func Serve(reg *rpc.Registry, engine *distautograd.Engine, lock sync.Locker) error {
	if reg == nil || engine == nil {
		return badOptimizer("Serve needs a registry and an engine")
	}
	if lock == nil {
		lock = new(sync.Mutex) // optimizers may share parameters
	}
	s := &server{engine: engine, lock: lock}
	var errs []error
	for name, fn := range map[string]any{newScript: s.create(scriptType), newPlain: s.create(""), stepHandler: s.step, stepPlain: s.step} {
		errs = append(errs, reg.Handle(name, fn))
	}
	return errors.Join(errs...)
}

type server struct {
	engine *distautograd.Engine
	lock   sync.Locker
}

// create makes the local part. Its arguments are the class, the references to the parameters and the arguments of the class.
func (s *server) create(script string) func(ctx context.Context, r *rpc.Request) (any, error) {
	return func(ctx context.Context, r *rpc.Request) (any, error) {
		if len(r.Args) < 2 {
			return nil, badOptimizer("%d arguments: want a class and the parameters", len(r.Args))
		}
		name, ok := r.Args[0].(py.Global)
		var refs []*rpc.Ref[*autograd.Variable]
		if err := rpc.Assign(&refs, r.Args[1]); err != nil || !ok {
			return nil, badOptimizer("want a class of torch.optim and references to parameters, not %T and %T", r.Args[0], r.Args[1])
		}
		defer func() {
			for _, ref := range refs {
				_ = ref.Close()
			}
		}()
		rule, err := parse(name, r.Args[2:], r.Kwargs)
		if err != nil {
			return nil, err
		}
		var params []*autograd.Variable
		for i, ref := range refs {
			v, failed := ref.LocalValue(ctx)
			if failed != nil {
				return nil, cohort.Wrap("optim: remote", cohort.CodeOf(failed), failed)
			}
			if v == nil {
				return nil, badOptimizer("parameter %d is nothing", i)
			}
			params = append(params, v)
		}
		opt, err := optim.New(rule, params)
		if err != nil {
			return nil, err
		}
		var ref *rpc.Ref[*local]
		if agent := rpc.AgentFrom(ctx); script != "" {
			ref, err = rpc.NewScriptRef(agent, &local{opt}, script)
		} else {
			ref, err = rpc.NewRef(agent, &local{opt})
		}
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = ref.Close() }) // when the caller has its own reference
		return ref, nil
	}
}

// step changes the parameters of a local part by the gradients of a context.
func (s *server) step(ctx context.Context, ref *rpc.Ref[*local], id int64) error {
	defer func() { _ = ref.Close() }()
	l, err := ref.LocalValue(ctx)
	if err != nil {
		return err
	}
	c := s.engine.Context(distautograd.ID(id))
	if c == nil {
		return cohort.Newf("optim: step", cohort.NotFound, "could not find autograd context with id: %d", id)
	}
	failpoint.At("optim.remote.step")
	s.lock.Lock()
	defer s.lock.Unlock()
	return l.opt.StepWith(c.GradientValue)
}

// String describes the optimizer at this worker.
func (l *local) String() string { return fmt.Sprint("local part of a remote optimizer: ", l.opt) }

// String says at how many workers the parameters are.
func (o *Optimizer) String() string {
	return fmt.Sprintf("remote optimizer (%d workers)", len(o.parts))
}
