// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

// Handler joins a world by one URL scheme. ctx bounds the joining; what the handler starts must outlive ctx and end with
// the Member it returns.
//
// It corresponds to the generator function that torch.distributed.register_rendezvous_handler takes. PyTorch lets a
// generator be asked again for a new world, which none of its own handlers support; here a new world is a new call.
type Handler func(ctx context.Context, call Call) (*Member, error)

// Call is what a Handler gets.
type Call struct {
	// Plan is the parsed URL with rank and world size.
	Plan Plan
	// Timeout is what the store's waiting operations should be bounded by. The joining itself is bounded by ctx.
	Timeout time.Duration
	// Hook receives the progress of the join. It may be nil.
	Hook observe.Hook
	// Logger is never nil.
	Logger *slog.Logger
}

// Registry maps URL schemes to handlers. Pass it to Join with [WithRegistry]; programs that need only the built-in
// schemes do not need one.
type Registry struct {
	mu       sync.RWMutex
	handlers map[string]Handler // nil for a built-in scheme
}

// NewRegistry returns a registry that knows env://, tcp:// and file://.
func NewRegistry() *Registry {
	return &Registry{handlers: map[string]Handler{"env": nil, "tcp": nil, "file": nil}}
}

// Register adds a scheme. Like PyTorch it refuses a scheme that already exists, including the built-in ones.
//
// It corresponds to torch.distributed.register_rendezvous_handler.
func (r *Registry) Register(scheme string, h Handler) error {
	const op = "rendezvous: register"
	if !isScheme(scheme) || strings.ToLower(scheme) != scheme {
		return &cohort.Error{
			Op: op, Code: cohort.InvalidArgument, Rank: cohort.NoRank, Key: scheme,
			Detail: `a scheme is lower-case letters, digits, "+", "-" and ".", and starts with a letter`,
		}
	}
	if h == nil {
		return &cohort.Error{Op: op, Code: cohort.InvalidArgument, Rank: cohort.NoRank, Key: scheme, Detail: "the handler is nil"}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.handlers[scheme]; taken {
		return &cohort.Error{
			Op: op, Code: cohort.AlreadyExists, Rank: cohort.NoRank, Key: scheme,
			Detail: fmt.Sprintf("Rendezvous handler for %s:// already registered; pick another scheme or another Registry", scheme),
		}
	}
	r.handlers[scheme] = h
	return nil
}

// Schemes returns the schemes that have a handler, sorted.
func (r *Registry) Schemes() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.handlers))
}

// Plan returns what a join with this request would do, without doing any of it.
func (r *Registry) Plan(request Request) (Plan, error) {
	plan, bad := resolve(request, r.known)
	if bad != nil {
		return plan, bad.asError(request.URL)
	}
	return plan, nil
}

func (r *Registry) known(scheme string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.handlers[scheme]
	return ok
}

func (r *Registry) handler(scheme string) Handler {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.handlers[scheme]
}

// Shared returns a Handler for ranks that live in one process, or that reach one store by other means: every join gets
// s, and rank and world size come from the URL. Closing a Member leaves s open.
func Shared(s store.Store) Handler {
	return func(_ context.Context, call Call) (*Member, error) {
		p := call.Plan
		if s == nil {
			return nil, cohort.New("rendezvous: join", cohort.InvalidArgument, "Shared was given a nil store")
		}
		if p.Rank == cohort.NoRank {
			return nil, initFailure(p.URL.Scheme, "rank parameter missing", "add rank=R to the url").asError(p.URL.String())
		}
		if p.WorldSize == NoWorldSize {
			return nil, initFailure(p.URL.Scheme, "world size parameter missing", "add world_size=N to the url").asError(p.URL.String())
		}
		return NewMember(s, p.Rank, p.WorldSize, Release{Close: func() error { return nil }}), nil
	}
}
