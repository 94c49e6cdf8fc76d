// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/tensor/recvalloc"
	"github.com/cohort-dist/cohort/tensor"
)

// peerLimits bound what a peer may make us hold. The zero value of a field means its default.
type peerLimits struct {
	Payload  int64 // bytes of one payload; default 1 GiB
	Message  int64 // bytes of a whole message; default 16 GiB
	Requests int   // requests on one pipe that wait for our answer before no more are read; default 131072
	Halfway  int   // connections in their handshake; default 1024
	Waiting  int64 // bytes of answers that wait for one peer to read before others are refused; default 1 GiB
	Ahead    int64 // bytes allocated for storages that were announced and have not arrived, in all; default 1 GiB
	Backlog  int   // sessions that wait for Accept; default 256
}

func (l peerLimits) withDefaults() peerLimits {
	set := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	seti := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.Payload, 1<<30)
	set(&l.Message, 16<<30)
	l.Message = min(l.Message, math.MaxInt) // a storage has to fit memory
	l.Payload = min(l.Payload, math.MaxInt)
	set(&l.Waiting, 1<<30)
	set(&l.Ahead, 1<<30)
	seti(&l.Requests, 128<<10)
	seti(&l.Halfway, 1024)
	seti(&l.Backlog, 256)
	return l
}

type config struct {
	limits    peerLimits
	logger    *slog.Logger
	handshake time.Duration
	unread    time.Duration // see lostGrace
	stall     time.Duration
	alloc     func(n int) (*tensor.Storage, error)
	accepts   []string
	offers    []string
	register  func() uint64
	address   string
	cohort    *cohortwire.Config
	ahead     *recvalloc.Budget
	judge     func(net.Conn) peeruid.Verdict // of a connection that was accepted
}

// Option configures an [Endpoint].
type Option interface{ apply(*config) error }

type option func(*config) error

func (o option) apply(c *config) error { return o(c) }

// WithLogger sets the logger that gets the reasons for refused and dropped connections.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) error {
		if l != nil {
			c.logger = l
		}
		return nil
	})
}

// WithAlloc sets where the memory for received storages comes from, such as a pool.
func WithAlloc(alloc func(n int) (*tensor.Storage, error)) Option {
	return option(func(c *config) error { c.alloc = alloc; return nil })
}

// WithChannels sets the channels for tensors, [ChannelBasic] and [ChannelMPT], the preferred first: what we accept as
// the listening side and what we offer as the dialling one. The default is to accept both and to offer basic, which is
// the faster one on our side.
func WithChannels(names ...string) Option {
	return option(func(c *config) error {
		for _, n := range names {
			if channelDescriptors[n] == "" {
				return cohort.Newf("tensorpipe: channels", cohort.InvalidArgument, "unknown channel %q: want basic or mpt_uv", n)
			}
		}
		c.accepts, c.offers = names, names
		return nil
	})
}

// WithAdvertisedAddress sets the host:port that peers are told to dial. The default is the address they dialled.
func WithAdvertisedAddress(addr string) Option {
	return option(func(c *config) error { c.address = addr; return nil })
}

// WithCohort offers and accepts the cohort transport, which Go workers speak among each other. The config has the identity of this
// worker and the callback for frames.
func WithCohort(cfg cohortwire.Config) Option {
	return option(func(c *config) error {
		if cfg.OnFrame == nil {
			return cohort.New("tensorpipe: cohort transport", cohort.InvalidArgument, "OnFrame is not set")
		}
		c.cohort = &cfg
		return nil
	})
}

func newConfig(opts []Option) (*config, error) {
	c := &config{
		logger: slog.New(slog.DiscardHandler), handshake: 20 * time.Second, unread: lostGrace, stall: time.Minute,
		alloc: tensor.NewStorage, accepts: []string{ChannelBasic, ChannelMPT}, offers: []string{ChannelBasic},
		// Ids are random so that another process cannot guess the id of an expected connection.
		register: rand.Uint64,
	}
	for _, o := range opts {
		if err := o.apply(c); err != nil {
			return nil, err
		}
	}
	c.limits = c.limits.withDefaults()
	if c.judge == nil {
		c.judge = peeruid.Default(nil, peeruid.ToLog(c.logger)).JudgeConn
	}
	c.ahead = recvalloc.NewBudget(c.limits.Ahead)
	if c.cohort != nil {
		c.cohort.Ahead = c.ahead
		if c.cohort.Alloc == nil {
			c.cohort.Alloc = c.alloc
		}
		if c.cohort.Logger == nil {
			c.cohort.Logger = c.logger
		}
	}
	return c, nil
}
