// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import (
	"log/slog"
	"net"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/native/nativewire"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// Config describes one rank's end of a mesh.
type Config struct {
	Rank, Size int
	// Group was drawn by one rank for this group; all ranks present it.
	Group [16]byte
	// Listener accepts the connections of higher ranks. Connect closes it.
	Listener net.Listener
	// Peers are the addresses of the ranks' listeners.
	Peers []string
	// Shared says that another rank is a goroutine of this process: who waits lets it run.
	Shared bool
	// Local tells which ranks run on this host, and so on cores that this rank may share. Nil means that none is known to.
	Local []bool
	// Heartbeat is how long a rank may be silent before it counts as lost. 0 means defaultHeartbeat, less than 0 never.
	Heartbeat time.Duration
	// Lanes is how many connections to each rank this one asks for, at most nativewire.MaxLanes. 0 means one. See Mesh.Lanes.
	Lanes int
	// Window is how many bytes of unexpected messages are held per peer. 0 means defaultWindow.
	Window int
	// OnFail, if set, is called once with the reason when the mesh fails other than by Close, from a goroutine of the mesh
	// that Close waits for. It must not call Close.
	OnFail func(error)
	// OnLost, if set, is notified of every rank that is gone, whether or not an operation runs; see [transport.Loss].
	OnLost func(transport.Loss)
	// OnGiveUp, if set, is given the reason why this rank cannot connect, before others can see that it does not.
	OnGiveUp func(error)
	// Logger receives refused connections and losses. Nil means none.
	Logger *slog.Logger
}

// Defaults.
const (
	defaultHeartbeat = 10 * time.Second
	defaultWindow    = 256 << 10
	// eagerMax is the largest message that is sent without asking.
	eagerMax = 32 << 10
)

func (c *Config) check() error {
	switch {
	case c.Size < 1 || c.Size > nativewire.MaxRanks || c.Rank < 0 || c.Rank >= c.Size:
		return cohort.Newf("native: connect", cohort.InvalidArgument, "rank %d of %d", c.Rank, c.Size)
	case len(c.Peers) != c.Size:
		return cohort.Newf("native: connect", cohort.InvalidArgument, "%d addresses for %d ranks", len(c.Peers), c.Size)
	case c.Local != nil && len(c.Local) != c.Size:
		return cohort.Newf("native: connect", cohort.InvalidArgument, "it is known of %d ranks where they run, of %d", len(c.Local), c.Size)
	case c.Lanes < 0 || c.Lanes > nativewire.MaxLanes:
		return cohort.Newf("native: connect", cohort.InvalidArgument,
			"%d connections between two ranks, from 1 to %d are possible", c.Lanes, nativewire.MaxLanes)
	}
	c.Lanes = max(c.Lanes, 1)
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	c.Window = max(c.Window, 4*eagerMax)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
