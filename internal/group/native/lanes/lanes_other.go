// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package lanes

import (
	"context"

	"github.com/cohort-dist/cohort/internal/group/native/nativetcp"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// Connect fails on this platform, as that of package tcp does.
func Connect(ctx context.Context, cfg nativetcp.Config) (transport.Mesh, error) {
	return nativetcp.Connect(ctx, cfg)
}
