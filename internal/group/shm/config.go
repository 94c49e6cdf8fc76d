// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// Exchange is how the ranks find each other before they share memory: two operations of a store. Get waits for the key.
type Exchange interface {
	Set(ctx context.Context, key string, value []byte) error
	Get(ctx context.Context, key string) ([]byte, error)
}

// MaxRanks bounds the ranks of one segment.
const MaxRanks = 256

// Config describes how a rank joins. Sizes are rank 0's to decide; the others take them from the segment.
type Config struct {
	// Rank and Size are this rank's place in the group.
	Rank, Size int
	// Name prefixes the keys in Exchange; it must differ between groups that share one.
	Name string
	// Exchange carries the addresses of the sockets.
	Exchange Exchange

	// Slot is the room of small data that travels with step 1; 0 means 64 KiB.
	Slot int
	// Area is the size of a piece of large data per rank; 0 means 256 KiB for two ranks and 128 KiB for more.
	Area int
	// Arena is the room per rank for [Engine.Alloc]; 0 means 1 GiB. It takes memory only where it is used.
	Arena int
	// HeartbeatLimit is how long a rank may stand still (stopped, not dead) before it counts as lost; 0 means ten seconds,
	// less than 0 for ever. Death is noticed at once, whatever this is.
	HeartbeatLimit time.Duration
	// OnLost, if set, is notified of every rank that is lost, whether or not an operation runs; see [transport.Loss].
	OnLost func(transport.Loss)
	// OnGiveUp, if set, gets the reason why this rank cannot join, before others can see that it does not.
	OnGiveUp func(error)
	// MappedFile makes rank 0 use an unlinked file in Dir even where memfd works. Dir "" means /dev/shm, else the
	// folder for temporary files.
	MappedFile bool
	Dir        string
}

func (c *Config) validate() error {
	const op = "shm: join"
	switch {
	case c.Size < 1 || c.Size > MaxRanks:
		return cohort.Newf(op, cohort.InvalidArgument, "size %d: want 1 to %d", c.Size, MaxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return cohort.Newf(op, cohort.InvalidArgument, "rank %d of %d", c.Rank, c.Size)
	case c.Exchange == nil && c.Size > 1:
		return cohort.New(op, cohort.InvalidArgument, "no exchange for the sockets' addresses")
	case c.Slot < 0 || c.Area < 0 || c.Arena < 0 || c.Slot > maxRoom || c.Area > maxRoom || c.Arena > maxArena:
		return cohort.Newf(op, cohort.InvalidArgument, "slot %d, area %d, arena %d: out of range", c.Slot, c.Area, c.Arena)
	}
	if c.Slot == 0 {
		c.Slot = 64 << 10
	}
	if c.Area == 0 {
		c.Area = 128 << 10 // with more, the pieces of all ranks leave the second-level cache before they are read
		if c.Size <= 2 {
			c.Area = 256 << 10
		}
	}
	most := maxArenas / c.Size / pageSize * pageSize // an arena is whole pages
	if c.Arena == 0 {
		c.Arena = min(1<<30, maxArena, most)
	}
	if c.Arena > most {
		return cohort.Newf(op, cohort.InvalidArgument, "arena %d for %d ranks: all together have at most %d bytes here", c.Arena,
			c.Size, maxArenas)
	}
	// Every rank has a part of an area in the kinds that send something different to each.
	c.Area = max(c.Area, c.Size*minPart)
	if c.HeartbeatLimit == 0 {
		c.HeartbeatLimit = 10 * time.Second
	}
	return nil
}
