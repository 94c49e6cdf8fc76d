// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package launchcore makes the decisions of the launcher, without processes, clocks or sockets.
//
// [Group] is the state machine of the workers on one node during one attempt: when evidence is collected, who is
// signalled and when, and when waiting ends. A driver passes it what happened (Step) and carries out the effects that it
// returns.
package launchcore
