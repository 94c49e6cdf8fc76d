// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

// WithSmallLog makes the files of the log of a data folder small, and snapshots frequent.
func WithSmallLog(segment, snapshot int64) ServerOption {
	return serverOption(func(c *serverConfig) { c.segment, c.snapshot = segment, snapshot })
}
