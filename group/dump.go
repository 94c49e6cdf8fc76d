// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/observe/safecall"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// WithDumpFiles writes the flight recorder's dump into dir when the group fails, and whenever one of the signals arrives:
// syscall.SIGUSR1, for instance. So a hanging group can be examined on all ranks from outside, and "cohort trace dir"
// says who is late. The file is named after the group, the global rank and the process, and is replaced by a later dump;
// dir is made when it does not exist. Without signals only a failure is dumped.
//
// It corresponds to TORCH_NCCL_DUMP_ON_TIMEOUT and TORCH_NCCL_DEBUG_INFO_TEMP_FILE.
func WithDumpFiles(dir string, signals ...os.Signal) Option {
	return option(func(c *config) { c.dumpDir, c.dumpSignals = dir, signals })
}

// dumps reports whether a dump is wanted.
func (c *config) dumps() bool { return c.dump != nil || c.dumpDir != "" }

// deliver takes a dump and gives it to those who want it.
func (g *Group) deliver(reason string) {
	data, err := g.trace(reason)
	if err != nil {
		g.config.Logger.Warn("the flight recorder's dump failed", slog.String("group", g.name), slog.Any("error", err))
		return
	}
	if g.config.dump != nil {
		safecall.Call(g.config.Logger, func() { g.config.dump(reason, data) })
	}
	if g.config.dumpDir != "" {
		flightrec.Save(g.config.Logger, g.config.dumpDir, reason, g.name, g.globals[g.rank], data)
	}
}

// watchSignals dumps on signals until the group is closed.
func (g *Group) watchSignals() {
	if len(g.config.dumpSignals) == 0 || g.config.dumpDir == "" {
		return
	}
	wait := flightrec.OnSignals(g.life.ctx, g.config.dumpSignals, func() { g.deliver("signal") })
	g.life.tasks.Go(wait)
}

// answer lets "cohort why" and "cohort trace" ask this process where it stands, in a job of "cohort run" and where
// COHORT_DUMP_DIR is set. Nothing depends on it.
func (f *family) answer(logger *slog.Logger) {
	server, err := controlsock.ServeOwn(controlsock.Answers{"stacks": controlsock.Stacks, "trace": f.trace})
	if err != nil {
		logger.Info("other processes cannot ask this one for its operations", slog.Any("error", err))
	}
	f.asked = server
}

// trace returns the dump of all groups of the family.
func (f *family) trace(context.Context) ([]byte, error) {
	failpoint.At("group.trace")
	f.mu.Lock()
	var all []*Group
	for g := range f.mu.live {
		all = append(all, g)
	}
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b *Group) int { return strings.Compare(a.name, b.name) })
	groups := make([]flightrec.Group, len(all))
	for i, g := range all {
		groups[i] = g.snapshot()
	}
	return json.Marshal(flightrec.NewDump(time.Now(), "asked", groups...))
}
