// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store/filestore"
)

const opJoin = "rendezvous: join"

// Join finds the other processes through an init URL and returns this process's place among them. ctx bounds the joining;
// if it has no deadline, the timeout of [WithTimeout] does.
//
// With tcp:// and env:// rank 0 hosts the store and returns when world_size clients have joined it, itself included; the
// others return as soon as they have reached the store. A store that a launcher hosts (TORCHELASTIC_USE_AGENT_STORE)
// and file:// wait for no other rank. This is all as in PyTorch.
//
// It corresponds to torch.distributed.rendezvous(url, rank, world_size).
func Join(ctx context.Context, url string, opts ...Option) (*Member, error) {
	s := newSettings(url, opts)
	plan, err := s.registry.Plan(s.request)
	if err != nil {
		return nil, err
	}
	s.warn(ctx, plan.Warning)
	if _, has := ctx.Deadline(); !has && s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.timeout)
		defer cancel()
	}
	start := time.Now()
	event := observe.Event{Time: start, Kind: EventJoin, Phase: observe.Begin, Rank: plan.Rank, Key: url}
	s.hook.Emit(event)
	member, err := s.join(ctx, plan)
	event.Time, event.Phase, event.Dur, event.Err = time.Now(), observe.End, time.Since(start), err
	if err == nil {
		event.Rank = member.Rank()
		event.Detail = fmt.Sprintf("rank %d of %d", member.Rank(), member.Size())
	}
	s.hook.Emit(event)
	return member, err
}

// warn reports what the user most likely did not mean. Without a logger of the user's it goes to the default one: silence
// would hide a mistake.
func (s *settings) warn(ctx context.Context, what string) {
	if what == "" {
		return
	}
	logger := s.logger
	if !s.logging {
		logger = slog.Default()
	}
	logger.LogAttrs(ctx, slog.LevelWarn, "rendezvous: "+what) //nolint:sloglint // a whole sentence about this url
	s.hook.Emit(observe.Event{Kind: EventWarning, Rank: cohort.NoRank, Detail: what})
}

func (s *settings) join(ctx context.Context, plan Plan) (*Member, error) {
	if e := cohort.FromContext(ctx, opJoin); e != nil {
		return nil, e
	}
	if h := s.registry.handler(plan.URL.Scheme); h != nil {
		member, err := h(ctx, Call{Plan: plan, Timeout: s.timeout, Hook: s.hook, Logger: s.logger})
		if err == nil && member == nil {
			err = cohort.New(opJoin, cohort.Internal, "the handler of "+plan.URL.Scheme+":// returned neither a member nor an error")
		}
		return member, err
	}
	if plan.URL.Scheme == "file" {
		return s.joinFile(ctx, plan)
	}
	return s.joinTCP(ctx, plan)
}

func (s *settings) joinFile(ctx context.Context, plan Plan) (*Member, error) {
	opts := []filestore.Option{filestore.WithWorldSize(plan.WorldSize), filestore.WithLogger(s.logger)}
	if s.timeSet {
		opts = append(opts, filestore.WithTimeout(s.timeout))
	}
	file, err := filestore.Open(ctx, plan.Path, opts...)
	if err != nil {
		return nil, err
	}
	return NewMember(file, plan.Rank, plan.WorldSize, Release{}), nil
}
