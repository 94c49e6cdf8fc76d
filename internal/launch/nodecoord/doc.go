// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodecoord is where the launchers of a job on several nodes meet. One launcher runs the [Host], and the launcher
// of each node talks to it over a [Wire] in [Message]s. The host decides nothing itself: it drives [launchcore.Job], opens
// the store of each attempt, and passes on what nodes ask and show each other.
package nodecoord
