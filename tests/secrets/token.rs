//! A token goes from one client to another, and is misused.

use leasehold::{Client, TransferToken};

use crate::things::{LIMIT, Seen};

pub(crate) async fn goes_over(seen: &mut Seen, one: &Client, two: &Client) {
    let name = "secrets/token";
    let guard = one.mutex(name).try_lock_for(LIMIT).await.unwrap().unwrap();
    seen.look("before it is handed off", one, two).await;
    let transfer = match guard.transfer().await {
        Ok(transfer) => transfer,
        Err(error) => return seen.texts.failed("handing off", &error),
    };
    let token = transfer.to_string();
    let numbers: Vec<&str> = token.split(':').skip(1).take(2).collect();
    numbers.iter().for_each(|number| seen.number(number));
    seen.texts.shown("a token", &transfer);
    seen.look("while it is on offer", one, two).await;
    // Of another lock, cut, with another number, and with another id.
    let wrong = two.mutex("secrets/another").accept_transfer(&transfer).await;
    seen.texts.failed("taking over another lock", &wrong.unwrap_err());
    let cut = token[..token.len() - 1].parse::<TransferToken>();
    seen.texts.failed("reading a token that was cut", &cut.unwrap_err());
    let forged = token.replacen(numbers[1], &numbers[1].chars().rev().collect::<String>(), 1);
    let forged = two.mutex(name).accept_transfer(&forged.parse().unwrap()).await;
    seen.texts.failed("taking over with a wrong number", &forged.unwrap_err());
    let foreign = token.replacen(numbers[0], &numbers[0].chars().rev().collect::<String>(), 1);
    let foreign = two.mutex(name).accept_transfer(&foreign.parse().unwrap()).await;
    seen.texts.failed("taking over with a wrong id", &foreign.unwrap_err());
    let taken = two.mutex(name).accept_transfer(&transfer).await.unwrap();
    seen.texts.shown("a guard that was taken over", &taken);
    seen.look("after a transfer", one, two).await;
    let again = one.mutex(name).accept_transfer(&transfer).await;
    seen.texts.failed("taking over twice", &again.unwrap_err());
    taken.release().await.unwrap();
    let late = one.mutex(name).accept_transfer(&transfer).await;
    seen.texts.failed("taking over a lock that was released", &late.unwrap_err());
}
