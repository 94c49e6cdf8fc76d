// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"log/slog"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/store"
)

// Option changes how [Join] works.
type Option interface{ applyWorld(*worldConfig) }

type worldConfig struct {
	rendezvous []rendezvous.Option
	store      store.Store
	general    []group.Option // from options that concern more than the group
	group      []group.Option
}

type worldOption func(*worldConfig)

func (o worldOption) applyWorld(c *worldConfig) { o(c) }

// WithRank sets the rank of this process; the URL must then contain neither rank nor world_size.
func WithRank(rank cohort.Rank) Option { return WithRendezvous(rendezvous.WithRank(rank)) }

// WithWorldSize sets the number of ranks; the URL must then contain neither rank nor world_size.
func WithWorldSize(size int) Option { return WithRendezvous(rendezvous.WithWorldSize(size)) }

// WithStore joins over a store that the processes reach by other means: one of the user's, or one in memory for ranks
// that are goroutines of one process. The URL of [Join] must then be empty, and [WithRank] and [WithWorldSize] are
// needed. Leaving the world does not close the store.
func WithStore(s store.Store) Option { return worldOption(func(c *worldConfig) { c.store = s }) }

// WithTimeout bounds the join, later every wait on the store whose context has no deadline, and every operation of the
// group. The default is PyTorch's, 30 minutes. It corresponds to timeout= of init_process_group.
func WithTimeout(d time.Duration) Option {
	return both(rendezvous.WithTimeout(d), group.WithTimeout(d))
}

// WithHook sends events to hook, among them every operation of the group and, while rank 0 waits for the others, who is
// missing.
func WithHook(hook observe.Hook) Option { return both(rendezvous.WithHook(hook), group.WithHook(hook)) }

// WithLogger sets the logger. Among other things it gets which transport the group chose, and why. By default nothing is
// logged.
func WithLogger(logger *slog.Logger) Option {
	return both(rendezvous.WithLogger(logger), group.WithLogger(logger))
}

// WithGroup passes options to the group that [World.Group] makes: transport, devices, heartbeat, flight recorder. They
// override the options of this package.
func WithGroup(opts ...group.Option) Option {
	return worldOption(func(c *worldConfig) { c.group = append(c.group, opts...) })
}

func both(r rendezvous.Option, g group.Option) Option {
	return worldOption(func(c *worldConfig) {
		c.rendezvous = append(c.rendezvous, r)
		c.general = append(c.general, g)
	})
}

// WithRendezvous passes options to the rendezvous package: registered schemes, shared servers, bind address.
func WithRendezvous(opts ...rendezvous.Option) Option {
	return worldOption(func(c *worldConfig) { c.rendezvous = append(c.rendezvous, opts...) })
}

// Join joins the other processes of a job and returns this process's view of it. The URL is one that PyTorch accepts:
//
//	env://                                            rank, size and address are in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
//	tcp://10.0.0.1:29500?rank=0&world_size=4          rank 0 hosts the store at this address
//	file:///shared/job.store?rank=0&world_size=4      all ranks share a file
//
// or one with a registered scheme, or "" with [WithStore]. With env:// and tcp:// rank 0 hosts the store and returns when
// all ranks have joined; the others return when they have reached the store. ctx bounds only the joining.
//
// It corresponds to the rendezvous of torch.distributed.init_process_group.
func Join(ctx context.Context, url string, opts ...Option) (*World, error) {
	var c worldConfig
	for _, o := range opts {
		if o != nil {
			o.applyWorld(&c)
		}
	}
	if c.store != nil {
		if url != "" {
			return nil, cohort.New("world: join", cohort.InvalidArgument,
				"a url and WithStore: give only one of them; with WithStore the url is empty")
		}
		const scheme = "store"
		registry := rendezvous.NewRegistry()
		if err := registry.Register(scheme, rendezvous.Shared(c.store)); err != nil {
			return nil, err
		}
		url, c.rendezvous = scheme+"://", append(c.rendezvous, rendezvous.WithRegistry(registry))
	}
	member, err := rendezvous.Join(ctx, url, c.rendezvous...)
	if err != nil {
		return nil, err
	}
	return newWorld(member, append(c.general, c.group...)), nil
}
