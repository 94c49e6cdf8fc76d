// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

// Dialect is the language that a client speaks with its server.
type Dialect uint8

// The dialects.
const (
	// DialectAuto finds the server's dialect by itself: the default.
	DialectAuto Dialect = iota
	// DialectLegacy is that of PyTorch 1.13.
	DialectLegacy
	// DialectV is that of PyTorch 2.4 and later.
	DialectV
	// DialectNative is that of cohort's own server: many calls on one connection, one round trip each.
	DialectNative
)

// String returns the dialect's name.
func (d Dialect) String() string {
	switch d {
	case DialectAuto:
		return "auto"
	case DialectLegacy:
		return "legacy"
	case DialectV:
		return "v"
	case DialectNative:
		return "native"
	}
	return "dialect " + strconv.Itoa(int(d))
}

// ClientOption is an option of [Dial].
type ClientOption interface {
	applyClient(*clientConfig)
}

type clientOption func(*clientConfig)

func (o clientOption) applyClient(c *clientConfig) { o(c) }

// clientConfig is what the options of Dial make.
type clientConfig struct {
	commonConfig
	timeout   time.Duration
	dialect   Dialect
	waitConns int
	dial      DialFunc
	limits    wire.Limits // of what we send
	raw       bool        // keys go out as they are
	patient   bool        // a host name may come to be
	known     []byte      // the identity of the store that is meant; nil: of whichever is there
}

const (
	defaultWaitConns = 8
	// maxReply bounds a value that we accept; memory is taken only as its bytes arrive.
	maxReply = 1 << 30
)

// replyLimits are those of what a server sends. They are wider than what we send: PyTorch 1.13 knows no limits, and
// values grow by append.
var replyLimits = wire.Limits{Key: 1 << 20, Value: maxReply, Keys: 1 << 24, Request: maxReply}

func newClientConfig(opts []ClientOption) clientConfig {
	c := clientConfig{
		commonConfig: defaultCommon(),
		timeout:      store.DefaultTimeout,
		waitConns:    defaultWaitConns,
		dial:         (&ctxdial.Faithful{Refuse: portowner.RefuseTorchPort}).Alive,
		limits:       wire.DefaultLimits,
	}
	for _, o := range opts {
		if o != nil {
			o.applyClient(&c)
		}
	}
	c.hook = safecall.Hook(c.logger, c.hook)
	return c
}

// EventRetry is the kind of event for a failed connection attempt that is followed by another.
const EventRetry observe.Kind = "store.dial.retry"

// dialer returns what opens connections to a server.
func (c *clientConfig) dialer(addr string) *storedial.Dialer {
	return &storedial.Dialer{
		Addr: addr, Dial: c.dial, Log: c.logger, Patient: c.patient,
		Failed: func(attempt int, took time.Duration, err error) {
			c.hook.Emit(observe.Event{
				Kind: EventRetry, Rank: cohort.NoRank, Peer: addr, Seq: uint64(attempt), Dur: took, //nolint:gosec // counts up from 1
				Detail: storeop.Detail(err), Err: err,
			})
		},
	}
}

// WithTimeout sets the client's timeout: it bounds the connecting when the context of [Dial] has no deadline, and later
// every operation whose context has none ([Client.SetTimeout] changes that). Zero or less means no bound for operations
// that wait. Operations that wait for nothing always have at least two seconds, so that a short timeout can be used to
// see whether a key appears. The default is [store.DefaultTimeout]. It corresponds to TCPStore's timeout argument.
func WithTimeout(d time.Duration) ClientOption {
	return clientOption(func(c *clientConfig) { c.timeout = d })
}

// WithDialect sets the dialect instead of detecting it, for tests and for servers that must not be probed. With
// [DialectNative] any server but cohort's is refused.
func WithDialect(d Dialect) ClientOption {
	return clientOption(func(c *clientConfig) { c.dialect = d })
}

// WithWaitConns bounds the connections that waits take on a PyTorch server, where a wait occupies its connection until
// it ends. Waits beyond the bound poll every few milliseconds instead. The default is 8; less than one means one. It
// has no effect on cohort's own server.
func WithWaitConns(n int) ClientOption {
	return clientOption(func(c *clientConfig) { c.waitConns = max(n, 1) })
}

// WithRawKeys makes the client use keys as they are on the wire, where PyTorch puts "/" in front of a user's key. It is
// for tools that need to see everything, including the store's own keys such as "init/".
func WithRawKeys() ClientOption { return clientOption(func(c *clientConfig) { c.raw = true }) }

// WithNameRetry makes [Dial] retry if the host name does not exist, for clusters in which names appear together with
// their processes. Without it that is an error at once, since most often the name is wrong.
func WithNameRetry() ClientOption { return clientOption(func(c *clientConfig) { c.patient = true }) }

// DialFunc opens a connection, as [net.Dialer.DialContext] does.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// WithDialer replaces the way connections are opened, for tests in memory, tunnels and chosen source addresses.
func WithDialer(dial DialFunc) ClientOption {
	return clientOption(func(c *clientConfig) {
		if dial != nil {
			c.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				return safecall.Get(c.logger, "dialer", func() (net.Conn, error) { return dial(ctx, network, addr) })
			}
		}
	})
}

// WithMaxSizes changes the largest key, value and number of keys that the client sends; a call with more fails with
// [store.ErrTooLarge] before anything is sent. Zero keeps the default: 8 KiB, 8 MiB and 131072, which every PyTorch
// server accepts. PyTorch's default server closes the connection if they are exceeded.
func WithMaxSizes(key, value, keys int) ClientOption {
	return clientOption(func(c *clientConfig) {
		for _, l := range []struct {
			limit *int
			to    int
		}{{&c.limits.Key, key}, {&c.limits.Value, value}, {&c.limits.Keys, keys}} {
			if l.to > 0 {
				*l.limit = l.to
			}
		}
	})
}
