// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package launchcore holds the decisions of the launcher, without process, clock or socket.
//
// [Group] is the machine of the workers on one node during one attempt: when evidence is taken, who is signalled and
// when, when patience ends. A driver tells it what happened (Step) and performs the effects that it returns.
package launchcore
