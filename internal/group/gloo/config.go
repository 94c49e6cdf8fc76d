// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/group/transport"
	"github.com/cohort-dist/cohort/observe"
)

// Generation is a version of gloo's rendezvous; see package wire.
type Generation = gloowire.Generation

// The generations.
const (
	auto = gloowire.Auto
	A    = gloowire.A
	B    = gloowire.B
	C    = gloowire.C
	D    = gloowire.D
)

// KV is what a mesh needs of a store. store.Store has it.
type KV interface {
	Set(ctx context.Context, key string, value []byte) error
	// Get waits until key exists.
	Get(ctx context.Context, key string) ([]byte, error)
}

// checker is a KV that can look for a key without waiting. Generation Auto needs it.
type checker interface {
	Check(ctx context.Context, keys ...string) (bool, error)
}

// defaultTimeout bounds Connect, and later the connecting of a lazy pair, when Config.Timeout is zero.
const defaultTimeout = 5 * time.Minute

// Config describes how to join a group.
type Config struct {
	Rank, Size int

	// Store is where addresses are exchanged, under Prefix + "/" + device + "/" + rank.
	Store  KV
	Prefix string

	// Generation is the protocol of the peers. Auto reads it from what they publish, which needs a Checker.
	Generation Generation
	// Lazy connects a pair at its first use; needs generation D.
	Lazy bool

	// Devices has one entry per device, each an IP address or the name of an interface; see [Address]. All ranks need the
	// same number. Empty means one device, chosen by the route towards StoreAddr.
	Devices []string
	// StoreAddr is the store's "host:port".
	StoreAddr string

	// Timeout bounds Connect and the connecting of a lazy pair.
	Timeout time.Duration
	// Linger is how long Close continues reading after the last byte was sent, so that what peers still send does not turn
	// into a reset that destroys data. It ends early when the peers have closed.
	Linger time.Duration
	// OnLost, if set, is notified of every rank that is lost, whether or not an operation runs; see [transport.Loss].
	OnLost func(transport.Loss)

	Logger *slog.Logger
	Hook   observe.Hook
	// Group names the group in events.
	Group string
	// Judge has the last word on why the mesh fails; see [transport.Judge].
	Judge transport.Judge

	// Wrap, if set, is given every connection before its first use; tests inject faults with it.
	Wrap func(peer int, conn net.Conn) net.Conn

	plain bool // send no more than PyTorch does, for tests
}

func (c *Config) prepare() error {
	bad := func(format string, args ...any) error {
		return cohort.Newf("gloo: connect", cohort.InvalidArgument, format, args...)
	}
	switch {
	case c.Size < 1 || c.Size > gloowire.MaxRanks:
		return bad("world size %d", c.Size)
	case c.Rank < 0 || c.Rank >= c.Size:
		return bad("rank %d of %d", c.Rank, c.Size)
	case c.Store == nil:
		return bad("no store")
	case c.Generation > D:
		return bad("generation %d", c.Generation)
	case c.Lazy && c.Generation != D:
		return bad("lazy connections need generation D, not %s", c.Generation)
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	if c.Linger <= 0 {
		c.Linger = 100 * time.Millisecond
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	if limit := 192 - len(gloowire.GoMark); len(name) > limit { // what gloo takes
		name = name[:limit]
	}
	return name
}
