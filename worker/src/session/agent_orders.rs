//! Orders from the agent to this rank.

use crate::comm::CommError;
use dtrain_protocol::Order;
use std::sync::mpsc::Receiver;

/// The orders that this rank has received.
#[derive(Debug)]
pub struct AgentOrders {
    inbox: Receiver<Order>,
    stop: bool,
}

impl AgentOrders {
    /// Creates the receiver of orders that arrive in `inbox`.
    pub fn of(inbox: Receiver<Order>) -> Self {
        Self { inbox, stop: false }
    }

    /// Waits for the addresses of all ranks and returns them, by rank. An order to stop that comes first
    /// is remembered.
    pub fn peers(&mut self) -> Result<Vec<String>, CommError> {
        loop {
            match self.inbox.recv() {
                Ok(Order::Peers(peers)) => return Ok(peers),
                Ok(Order::Stop) => self.stop = true,
                Err(_) => {
                    return Err(CommError::Link(
                        "no agent is left that knows the addresses of the other ranks".into(),
                    ));
                }
            }
        }
    }

    /// Returns `true` if the agent has ordered a stop by now.
    pub fn stop(&mut self) -> bool {
        self.stop |= self.inbox.try_iter().any(|order| order == Order::Stop);
        self.stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_stop_is_never_lost() {
        let (orders, inbox) = channel();
        let mut inbox = AgentOrders::of(inbox);
        assert!(!inbox.stop());
        orders.send(Order::Stop).unwrap();
        orders.send(Order::Peers(vec!["here:1".into()])).unwrap();
        assert_eq!(inbox.peers().unwrap(), ["here:1"]);
        assert!(inbox.stop() && inbox.stop(), "it holds from then on");
    }
}
