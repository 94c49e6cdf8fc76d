// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package faultnet gives tests networks that fail on command.
//
// [Network] is a network in memory: connections have buffers and deadlines like TCP, block only on channels, and so work
// inside testing/synctest bubbles. [Proxy] stands between a client and a server, over TCP or over a Network, and cuts,
// delays, throttles, swallows or garbles what passes.
package faultnet
