// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package nativetcp

import (
	"context"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/transport"
)

// Supported reports whether this platform has the native wire. Ranks without it speak gloo's.
const Supported = false

// Mesh does not exist on this platform.
type Mesh struct{ transport.Mesh }

// Connect fails on this platform.
func Connect(_ context.Context, cfg Config) (*Mesh, error) {
	if cfg.Listener != nil {
		_ = cfg.Listener.Close()
	}
	return nil, cohort.New("native: connect", cohort.NotSupported, "the native wire needs Linux; use the transport gloo")
}
