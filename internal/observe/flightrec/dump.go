// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// version is the version of the dump's format.
const version = 1

// format names the format in a dump.
const format = "cohort-flight-recorder"

// Dump is a picture of one or more rings of one process.
type Dump struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason,omitempty"` // why it was taken: "asked", "failure", "signal"
	Groups  []Group   `json:"groups"`
	Worker  *Worker   `json:"worker,omitempty"` // an RPC worker of the process
}

// Group is one ring in a dump.
type Group struct {
	About
	Status  Status  `json:"status"`
	Failed  string  `json:"failed,omitempty"` // why the group failed
	Lost    uint64  `json:"lost,omitempty"`   // older operations that were overwritten
	Entries []Entry `json:"entries"`
}

// Snapshot returns what the ring holds, oldest first.
func (r *Ring) Snapshot() Group {
	n := uint64(len(r.entries))
	from := uint64(1)
	if r.next > n {
		from = r.next - n
	}
	g := Group{About: r.about, Status: r.status, Lost: from - 1, Entries: make([]Entry, 0, r.next-from)}
	for id := from; id < r.next; id++ {
		g.Entries = append(g.Entries, r.entries[id%n])
	}
	return g
}

// NewDump puts groups into a dump.
func NewDump(at time.Time, reason string, groups ...Group) Dump {
	return Dump{Format: format, Version: version, Time: at, Reason: reason, Groups: groups}
}

// maxDump bounds a dump that is read.
const maxDump = 256 << 20

// Parse reads a dump.
func Parse(data []byte) (Dump, error) {
	const op = "recorder: read dump"
	var d Dump
	if len(data) > maxDump {
		return d, cohort.Newf(op, cohort.TooLarge, "%d bytes, at most %d are read", len(data), maxDump)
	}
	if err := printable.Unmarshal(data, &d); err != nil {
		return d, cohort.Newf(op, cohort.Protocol, "this is not a dump of the flight recorder: %w", err)
	}
	if d.Format != format {
		return d, cohort.Newf(op, cohort.Protocol, "this is not a dump of the flight recorder: its format is %q", d.Format)
	}
	if d.Version != version {
		return d, cohort.Newf(op, cohort.NotSupported, "dump version %d, this program reads version %d", d.Version, version)
	}
	for _, g := range d.Groups {
		if g.Size < 1 || g.Rank < 0 || g.Rank >= g.Size {
			return d, cohort.Newf(op, cohort.Protocol, "group %q has rank %d of %d", g.Group, g.Rank, g.Size)
		}
	}
	return d, nil
}

// Save puts the dump of a group's rank of this process into a folder, and logs that.
func Save(logger *slog.Logger, dir, reason, group string, globalRank int, data []byte) {
	name, err := writeFile(dir, group, globalRank, data)
	if err != nil {
		logger.Warn("the flight recorder's dump could not be written", slog.String("group", group), slog.Any("error", err))
		return
	}
	logger.Info("flight recorder dumped", slog.String("group", group), slog.String("reason", reason), slog.String("file", name))
}

// writeFile returns the name of the file. It replaces the file as a whole, so that a reader never sees half of it.
func writeFile(dir, group string, globalRank int, data []byte) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // for every user who looks for the reason
		return "", err
	}
	name := filepath.Join(dir, fmt.Sprintf("group-%s.rank%d.%d.json", fileName(group), globalRank, os.Getpid()))
	partial, err := os.CreateTemp(dir, ".dump*")
	if err != nil {
		return "", err
	}
	_, err = partial.Write(data)
	if e := partial.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(partial.Name(), name)
	}
	if err != nil {
		_ = os.Remove(partial.Name())
	}
	return name, err
}

// OnSignals begins to catch signals. The function that it returns calls f for each, until ctx ends.
func OnSignals(ctx context.Context, signals []os.Signal, f func()) (run func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, signals...)
	return func() {
		defer signal.Stop(caught)
		for {
			select {
			case <-caught:
				f()
			case <-ctx.Done():
				return
			}
		}
	}
}

// fileName keeps what is harmless in the name of a file.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
}
