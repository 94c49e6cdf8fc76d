// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

// AddLoad tells the link about calls that its user matches with answers itself, instead of with [Link.Call]: above a few
// at once it is worth to write frames of several callers together.
func (l *Link) AddLoad(n int64) { l.load.Add(n) }
