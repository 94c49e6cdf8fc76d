// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// answer lets "cohort why" and "cohort trace" ask this process where it stands, in a job of "cohort run" and where
// COHORT_DUMP_DIR is set. Nothing depends on it.
func (f *family) answer(logger *slog.Logger) {
	server, err := controlsock.ServeOwn(controlsock.Answers{"stacks": controlsock.Stacks, "trace": f.trace})
	if err != nil {
		logger.Info("this process cannot be asked where it stands", slog.Any("error", err))
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
