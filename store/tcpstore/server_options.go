// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"cmp"
	"time"

	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/fdlimit"
)

// Limits bound what a [Server] holds for its clients. A PyTorch client that exceeds one is disconnected, with the reason
// in the log; a Go client gets an error instead. A zero field means its default.
type Limits struct {
	// Key is the longest key in bytes. Default 8 KiB, as PyTorch's libuv server.
	Key int
	// Value is the longest value in bytes. Default 8 MiB, as PyTorch's libuv server.
	Value int
	// Keys is the number of keys that one request may name. Default 128 Ki, as PyTorch's libuv server.
	Keys int
	// Request is the longest request in bytes, all keys and values together. Default 256 MiB.
	Request int
	// Conns is the number of connections. A PyTorch 1.13 client has two. Default 65536.
	Conns int
	// Memory bounds everything that the server holds for its clients, in bytes. Half of it is for keys, values and queues; a
	// quarter for replies not yet read; an eighth for requests not yet complete; an eighth for waits, watches and claims. When
	// the half is full, requests that need room are refused. Replies and requests over 4 KiB that have no room wait
	// until others have read or sent theirs, with hosts taking turns; while any wait, clients that make no progress for seconds
	// are disconnected. When there are too many waits, the client with the most is disconnected. Default 4 GiB.
	Memory int64
	// Output is how many bytes may wait for one client to read them. Default 256 MiB.
	Output int
	// Waits is the number of waits and watches that one connection may have open. Default 16384.
	Waits int
	// Stall is how long a client may leave its output unread when no other client needs the memory. Default one minute.
	Stall time.Duration
}

// DefaultLimits returns the limits of a server without [WithLimits].
func DefaultLimits() Limits { return Limits{}.withDefaults() }

func (l Limits) withDefaults() Limits {
	return Limits{
		Key:     cmp.Or(max(l.Key, 0), wire.DefaultLimits.Key),
		Value:   cmp.Or(max(l.Value, 0), wire.DefaultLimits.Value),
		Keys:    cmp.Or(max(l.Keys, 0), wire.DefaultLimits.Keys),
		Request: cmp.Or(max(l.Request, 0), wire.DefaultLimits.Request),
		Conns:   cmp.Or(max(l.Conns, 0), 1<<16),
		Memory:  cmp.Or(max(l.Memory, 0), 4<<30),
		Output:  cmp.Or(max(l.Output, 0), 256<<20),
		Waits:   cmp.Or(max(l.Waits, 0), 1<<14),
		Stall:   cmp.Or(max(l.Stall, 0), time.Minute),
	}
}

func (l Limits) core() storecore.Limits {
	return storecore.Limits{
		Limits: wire.Limits{Key: l.Key, Value: l.Value, Keys: l.Keys, Request: l.Request},
		Memory: l.Memory, Output: l.Output, Waits: l.Waits,
	}
}

// ServerOption configures [Listen], [Serve] and [ListenFD].
type ServerOption interface{ applyServer(*serverConfig) }

type serverOption func(*serverConfig)

func (o serverOption) applyServer(c *serverConfig) { o(c) }

type serverConfig struct {
	commonConfig
	limits   Limits
	loops    int
	portable bool
	forget   bool
	dataDir  string
	journal  func(*storecore.Config) (storeserve.Journal, *storecore.Machine)
	segment  int64 // bytes of the files of its log; 0: as usual. Tests make it small.
	snapshot int64 // bytes of the log after which it makes a snapshot; as above

	allowUIDs   []uint32
	onOtherUser func(string)
}

// defaultLoops is the number of loops of a server without [WithLoops]. Tests change it, so that all of them can be run with
// several.
var defaultLoops = 1

func newServerConfig(opts []ServerOption) serverConfig {
	c := serverConfig{commonConfig: defaultCommon()}
	for _, o := range opts {
		if o != nil {
			o.applyServer(&c)
		}
	}
	c.limits = c.limits.withDefaults()
	c.loops = min(max(cmp.Or(c.loops, defaultLoops), 1), storecore.MaxLoops)
	return c
}

// serving is the configuration of what serves s.
func (c serverConfig) serving(s *Server) storeserve.Config {
	return storeserve.Config{
		Machine: storecore.Config{
			Limits: c.limits.core(), Identity: newIdentity, Forget: c.forget,
			Silent: fdlimit.Share(descriptorShare, leastSilent, mostSilent),
		},
		Stats: s.statsJSON,
		Conns: c.limits.Conns, Stall: c.limits.Stall,
		Loops: c.loops, Portable: c.portable,
		Logger: c.logger, Hook: safecall.Hook(c.logger, c.hook),
		AllowUIDs: c.allowUIDs, OnOtherUser: c.onOtherUser,
	}
}

// Of the descriptors that the process may have, one in descriptorShare may be those of connections which have sent nothing.
const (
	descriptorShare         = 4
	leastSilent, mostSilent = 32, 4096
)

// WithLimits replaces the default limits.
func WithLimits(l Limits) ServerOption {
	return serverOption(func(c *serverConfig) { c.limits = l })
}

// WithForget makes a server forget everything whenever its last client leaves, as by [Server.Clear]: then the next run of a job
// finds an empty store. Connections that only look, as cohort store top does, do not count as clients. A job loses its keys if at
// some moment none of its processes is connected. Ranks of PyTorch and of Go stay connected for as long as they run.
func WithForget() ServerOption {
	return serverOption(func(c *serverConfig) { c.forget = true })
}

// WithAllowedUIDs accepts connections of these users of the server's host, for a store that several of them share. Without it those of the
// server's own user and of root are accepted; COHORT_ALLOW_UID in the environment names more. Connections from other hosts are accepted:
// their users are not known. So are all where the system does not tell whose a connection is, which is said once.
func WithAllowedUIDs(uids ...uint32) ServerOption {
	return serverOption(func(c *serverConfig) { c.allowUIDs = uids })
}

// WithOnOtherUser has f called, instead of a line in the log, when the connection of another user is refused for the first time.
func WithOnOtherUser(f func(sentence string)) ServerOption {
	return serverOption(func(c *serverConfig) { c.onOtherUser = f })
}

// WithLoops has n event loops serve the connections, at most 64, each with a share of them. Default 1, which is right for a
// process that does other things besides. More loops than processors are of no use. They share one key space and one set of
// limits, and several loops give the same guarantees as one. Only TCP on Linux is served by loops.
//
// A client of PyTorch gets no reply to a set. With several loops, and as over a network, another client may overtake such a
// set that is still under way; it never overtakes what was replied to, nor what was sent before it connected.
func WithLoops(n int) ServerOption {
	return serverOption(func(c *serverConfig) { c.loops = n })
}

// withPortable makes a server use goroutines and net.Conn where it would use epoll, so that tests cover both.
func withPortable() ServerOption {
	return serverOption(func(c *serverConfig) { c.portable = true })
}
