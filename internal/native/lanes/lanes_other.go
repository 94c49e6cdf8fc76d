// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package lanes

import (
	"context"

	"github.com/cohort-dist/cohort/internal/link"
	"github.com/cohort-dist/cohort/internal/native/tcp"
)

// Connect fails on this platform, as that of package tcp does.
func Connect(ctx context.Context, cfg tcp.Config) (link.Mesh, error) { return tcp.Connect(ctx, cfg) }
